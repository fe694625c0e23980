"""What the chart's hooks decide and say: dropped versions, readiness, refusals, exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from epfabric_crds import definitions as packaged
from epfabric_operator.chores.definitions import dropped, shipped, unready
from epfabric_operator.chores.leaving import Leave, refusal, uses_volume
from epfabric_operator.chores.outcome import Unfinished, persist, shown, wait
from epfabric_operator.chores.remains import NODE_LABELS
from epfabric_operator.facts import fact_labels
from epfabric_operator.kube import ApiError
from epfabric_operator.main import main
from unit.operator.builders import fabric, node, plan, world

LEAVE = Leave("epfabric-system", "epfabric-nodes", 10.0, release="fab", revision=7)


def crd(*versions: str, stored: list[str] | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"spec": {"versions": [{"name": name} for name in versions]}}
    if stored is not None:
        made["status"] = {"storedVersions": stored}
    return made


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        (None, []),
        (crd("v1"), []),
        (crd("v1", stored=["v1"]), []),
        (crd("v0", "v1", stored=["v0", "v1"]), ["v0"]),
        (crd("v1", "v2", stored=["v2"]), ["v2"]),
        (crd("v0", "v1", stored=["v1"]), []),
    ],
)
def test_a_version_is_dropped_only_when_something_may_be_stored_in_it(
    present: dict[str, Any] | None, expected: list[str]
) -> None:
    assert dropped(present, crd("v1")) == expected


def conditions(**status: str) -> dict[str, Any]:
    made = [{"type": k, "status": v, "message": f"{k} says {v}"} for k, v in status.items()]
    return {"status": {"conditions": made}}


@pytest.mark.parametrize(
    ("present", "says"),
    [
        (None, "missing"),
        ({}, "NamesAccepted is not True: nothing said yet"),
        (conditions(NamesAccepted="False"), "NamesAccepted says False"),
        (conditions(NamesAccepted="True"), "Established is not True"),
        (conditions(NamesAccepted="True", Established="False"), "Established says False"),
    ],
)
def test_a_definition_is_not_served(present: dict[str, Any] | None, says: str) -> None:
    assert says in (unready(present) or "")


def test_a_definition_is_served() -> None:
    assert unready(conditions(NamesAccepted="True", Established="True")) is None


def test_a_refusal_lists_ten_and_says_what_to_do() -> None:
    text = refusal([f"a/p{number:02}" for number in range(12)], LEAVE)
    assert text.startswith("12 pods still use a fabric")
    assert text.count("\n  a/p") == 10
    assert "\n  and 2 more\n" in text
    for command in ("rollback fab 7", "--set uninstall.force=true", "uninstall fab"):
        assert command in text
    one = refusal(["a/p"], LEAVE)
    assert one.startswith("1 pod still uses a fabric")
    assert "more" not in one


@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        (None, False),
        ([{"name": "epfabric", "emptyDir": {}}], False),
        ([{"name": "x", "csi": {"driver": "other"}}], False),
        ([{"name": "a"}, {"name": "x", "csi": {"driver": "csi.epfabric.io"}}], True),
    ],
)
def test_only_our_volume_counts(volumes: list[dict[str, Any]] | None, expected: bool) -> None:
    assert uses_volume({"spec": {"volumes": volumes} if volumes else {}}) is expected


def test_a_wait_is_bounded_and_names_what_is_left() -> None:
    with pytest.raises(Unfinished, match="the end: not done after 0 s: a, b"):
        wait(lambda: ["a", "b"], 0.0, "the end")
    wait(list, 0.0, "nothing")
    assert shown([str(number) for number in range(12)]).endswith("8, 9 and 2 more")


def test_an_api_server_that_is_away_is_asked_again_and_one_that_says_no_is_not() -> None:
    answers = [ApiError(0, "Unreachable", "away"), ApiError(503, "Busy", "busy"), None]
    asked = iter(answers)

    def chore(left_s: float) -> str:
        assert 1.0 <= left_s <= 60.0
        if error := next(asked):
            raise error
        return "done"

    assert persist(chore, 60.0) == "done"

    def refused(left_s: float) -> str:
        raise ApiError(403, "Forbidden", "no")

    with pytest.raises(ApiError, match="no"):
        persist(refused, 60.0)

    def away(left_s: float) -> str:
        raise ApiError(0, "Unreachable", "away")

    with pytest.raises(ApiError, match="away"):
        persist(away, 0.0)


def test_no_label_that_the_operator_sets_stays_on_a_node() -> None:
    moe, there = fabric(), node("n", pool="moe")
    made = plan("moe", world(moe, there))
    told = {label for relabel in made.relabel for label in relabel.labels}
    left = plan("moe", world(node("n", **dict.fromkeys(NODE_LABELS, "x"), of="moe")))
    assert told | set(fact_labels(None)) <= set(NODE_LABELS)
    assert {label for relabel in left.relabel for label in relabel.labels} == set(NODE_LABELS)


def test_definitions_can_be_printed_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crds", "print"]) == 0
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == shipped()
    assert len(shipped()) == len(packaged.FILES) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["crds"],
        ["crds", "destroy"],
        ["uninstall", "later"],
        ["check", "--timeout-seconds=0"],
        ["check", "--timeout-seconds=1h"],
    ],
)
def test_a_wrong_command_line_is_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


@pytest.mark.parametrize("words", [["crds", "apply"], ["uninstall", "prepare"], ["check"]])
def test_no_access_is_4(words: list[str], tmp_path: Path) -> None:
    assert main([*words, f"--kubeconfig={tmp_path / 'none'}"]) == 4
