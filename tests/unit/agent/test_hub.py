"""What a hello waits for of its group: with a bound, and never for another group."""

from __future__ import annotations

import asyncio
from pathlib import Path

from epfabric_agent.groups.hub import Hub, NoReporter
from epfabric_agent.pods import Pod

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
