"""What a hello waits for of its group: with a bound, and never for another group."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from epfabric_agent.groups.context import NodeContext
from epfabric_agent.groups.hub import Hub, NoReporter
from epfabric_agent.groups.state import GroupState
from epfabric_agent.pods import Pod
from epfabric_agent.proto import peer_pb2 as pb

WAIT_S = 20.0


def pod(group: str) -> Pod:
    return Pod(group, "ns", "p", group, None, Path("/nowhere"))


class SlowReporter(NoReporter):
    """Knows the epoch of group `quick`; for the others its API server does not answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Event()

    async def last_epoch(self, pod: Pod) -> int:
        self.asked.append(pod.group)
        if pod.group != "quick":
            await self.answers.wait()
        return 7


async def test_a_group_whose_epoch_is_not_told_holds_up_no_other_group() -> None:
    reporter = SlowReporter()
    hub = Hub(reporter, epoch_s=WAIT_S)
    slow = [asyncio.create_task(hub.last_epoch(pod("slow"))) for _ in range(3)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(hub.last_epoch(pod("quick")), WAIT_S / 2) == 7
    assert not any(task.done() for task in slow)
    reporter.answers.set()
    assert await asyncio.wait_for(asyncio.gather(*slow), WAIT_S) == [7, 7, 7]
    assert reporter.asked == ["slow", "quick"], "one question at a time for each group"


async def test_an_epoch_that_is_never_told_is_waited_for_with_a_bound() -> None:
    hub = Hub(SlowReporter(), epoch_s=0.05)
    assert await asyncio.wait_for(hub.last_epoch(pod("slow")), WAIT_S) == 0
    assert await asyncio.wait_for(hub.last_epoch(pod("slow")), WAIT_S) == 0


class Listener(NoReporter):
    def __init__(self) -> None:
        self.heard: list[tuple[int, str]] = []

    def state(self, pod: Pod, state: GroupState) -> None:
        self.heard.append((state.epoch, state.phase))


async def test_the_number_of_an_epoch_that_began_to_form_is_not_given_to_another_one() -> None:
    """The others join the next epoch while rank 0's old session still ends, and with it what had
    formed: the group's status had that number."""
    listener = Listener()
    hub = Hub(listener)
    nobody = cast(Any, None)
    hub.use(
        NodeContext(
            node="a", endpoint="a:1", core=nobody, client=nobody, join_timeout_s=WAIT_S,
            barrier_timeout_ms=1000, mask=True, dissemination=False, nic_faults=lambda _: "",
            find=lambda _: asyncio.sleep(0), observe=lambda: None, changed=lambda: None,
            give_up=lambda _: None,
        )
    )  # fmt: skip

    def rank_1_enters() -> None:
        coordinator = hub.coordinator(own.group_key)
        assert coordinator is not None
        enter = pb.Enter(rank=1, world_size=2, pod="ns/p-1", blob=b"b")
        coordinator.receive(coordinator.attach("b", "b:1", 0), pb.ToCoordinator(enter=enter))

    own = pod("g")
    hub.part_for(own, 0, 0)
    rank_1_enters()
    hub.retire()
    assert hub.coordinator(own.group_key) is None
    hub.part_for(own, 0, 0)
    rank_1_enters()
    assert listener.heard == [(1, "Forming"), (1, "Failed"), (2, "Forming")]
    await hub.close("the test is over")
