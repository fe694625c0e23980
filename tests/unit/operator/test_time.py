"""Leases and work are judged by the operator's own clock, which these tests turn."""

from __future__ import annotations

from typing import Any

import pytest
from epfabric_operator.config import parse
from epfabric_operator.leaseage import LeaseAges
from epfabric_operator.worklist import Work, Worklist


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lease(node: str, renewed: str | None) -> dict[str, Any]:
    return {"metadata": {"name": f"epfabric-agent-{node}"}, "spec": {"renewTime": renewed}}


def ages(monotonic: Clock, wall: Clock) -> LeaseAges:
    return LeaseAges(monotonic, wall)


def test_a_lease_ages_while_it_stands_still_and_is_fresh_when_it_moves() -> None:
    monotonic, wall = Clock(), Clock()
    wall.now = 100.0
    found = ages(monotonic, wall)
    first = lease("a", "1970-01-01T00:01:35Z")
    assert found.update([first]) == {"a": 5.0}
    monotonic.now += 30
    assert found.update([first]) == {"a": 35.0}
    # The other node's clock is an hour behind: that it moved is what counts.
    moved = lease("a", "1970-01-01T00:00:01Z")
    assert found.update([moved]) == {"a": 0.0}
    monotonic.now += 41
    assert found.update([moved]) == {"a": 41.0}


def test_a_lease_that_went_and_others_are_not_remembered() -> None:
    found = ages(Clock(), Clock())
    other = {"metadata": {"name": "epfabric-operator"}, "spec": {"renewTime": "x"}}
    assert found.update([lease("a", None), other]) == {}
    assert found.update([lease("a", "2026-01-01T00:00:00Z")]) == {"a": 0.0}
    assert found.update([]) == {}


def test_work_that_is_added_often_is_done_once_and_in_order() -> None:
    clock = Clock()
    made = Worklist(settle_s=0.3, clock=clock)
    for name in ("b", "a", "b"):
        made.add(Work("fabric", name))
    made.add(Work("csr", "c"), after_s=0)
    assert made.take(0) == [Work("csr", "c")]
    clock.now += 0.3
    assert made.take(0) == [Work("fabric", "a"), Work("fabric", "b")]
    assert made.take(0) == []


def test_work_that_fails_comes_back_later_and_later_but_not_never() -> None:
    clock = Clock()
    made = Worklist(clock=clock)
    waits = []
    for _ in range(9):
        made.failed(Work("fabric", "a"))
        start = clock.now
        while not made.take(0):
            clock.now += 1
        waits.append(clock.now - start)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    made.done(Work("fabric", "a"))
    made.failed(Work("fabric", "a"))
    clock.now += 1
    assert made.take(0) == [Work("fabric", "a")]


def test_an_event_does_not_wait_for_the_next_try() -> None:
    clock = Clock()
    made = Worklist(settle_s=0.3, clock=clock)
    for _ in range(5):
        made.failed(Work("fabric", "a"))
        clock.now += 60
        made.take(0)
    made.failed(Work("fabric", "a"))
    made.add(Work("fabric", "a"))
    clock.now += 0.3
    assert made.take(0) == [Work("fabric", "a")]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--agent-image or EPFABRIC_AGENT_IMAGE must name the agents' image"),
        (["--agent-image=x", "--resync-seconds=0"], "not a number of seconds from 0.1 to 3600"),
        (["--agent-image=x", "--health-port=x"], "'x' is not a port from 0 to 65535"),
        (["--agent-image=x", "--log-format=xml"], "invalid choice: 'xml'"),
    ],
)
def test_a_wrong_command_line_is_explained(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments, {})
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_the_environment_gives_what_the_command_line_leaves_out() -> None:
    environ = {"EPFABRIC_AGENT_IMAGE": "i", "EPFABRIC_NAMESPACE": "n", "POD_NAME": "p"}
    found = parse(["--namespace=m"], environ)
    assert (found.agent_image, found.namespace, found.kubeconfig) == ("i", "m", None)
    assert found.identity.startswith("p_")
    assert parse([], environ).identity != found.identity
