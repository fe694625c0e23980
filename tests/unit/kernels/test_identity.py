"""Which rank a process is, from what its launcher left in the environment."""

import pytest
from epfabric import SessionError
from epfabric.identity import rank_and_world


@pytest.mark.parametrize(
    ("environment", "hostname", "expected"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, "pod-5", (3, 8)),
        ({"RANK": "3", "WORLD_SIZE": "8", "JOB_COMPLETION_INDEX": "1"}, "pod", (3, 8)),
        ({"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "8"}, "pod-5", (1, 8)),
        ({"JOB_COMPLETION_INDEX": "1", "EPFABRIC_WORLD_SIZE": "4"}, "pod-5", (1, 4)),
        ({"LWS_WORKER_INDEX": "2", "LWS_GROUP_SIZE": "3"}, "pod-5", (2, 3)),
        ({"EPFABRIC_WORLD_SIZE": "6"}, "moe-ranks-5", (5, 6)),
        ({"RANK": "", "WORLD_SIZE": "6"}, "moe-5", (5, 6)),
    ],
)
def test_each_launcher_is_understood(
    environment: dict[str, str], hostname: str, expected: tuple[int, int]
) -> None:
    assert rank_and_world(environment, hostname, None, None) == expected


def test_arguments_win() -> None:
    environment = {"RANK": "3", "WORLD_SIZE": "8"}
    assert rank_and_world(environment, "pod-5", 1, 2) == (1, 2)
    assert rank_and_world(environment, "pod-5", 1, None) == (1, 8)
    assert rank_and_world(environment, "pod-5", None, 4) == (3, 4)


@pytest.mark.parametrize(
    ("environment", "hostname", "says"),
    [
        ({}, "pod", "RANK"),
        ({"RANK": "0"}, "pod", "WORLD_SIZE"),
        ({"JOB_COMPLETION_INDEX": "0"}, "pod", "WORLD_SIZE"),
        ({"LWS_WORKER_INDEX": "0"}, "pod", "LWS_GROUP_SIZE"),
        ({}, "pod-1", "WORLD_SIZE"),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "pod", "'one'"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "pod", "whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "pod", "outside"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "pod", "outside"),
    ],
)
def test_what_is_missing_is_named(environment: dict[str, str], hostname: str, says: str) -> None:
    with pytest.raises(SessionError, match=says):
        rank_and_world(environment, hostname, None, None)
