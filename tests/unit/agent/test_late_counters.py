"""NIC counters that cannot be read hold up neither the report of a late barrier nor a look."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from epfabric_agent.groups.context import PartContext
from epfabric_agent.groups.epoch import LocalEpoch
from epfabric_agent.groups.part_epoch import UNREAD, EpochPart
from epfabric_agent.nic.counters import NicFaults
from epfabric_agent.peers.link import Link
from epfabric_agent.proto import peer_pb2 as pb
from epfabric_agent.threads import in_time, named
from epfabric_agent.topology.machine import Machine

if TYPE_CHECKING:
    from epfabric_agent._native import Event

WAIT_S = 20.0


class Part(EpochPart):
    def _unfollow(self) -> None:
        pass


async def test_a_late_barrier_is_reported_though_no_counter_can_be_read() -> None:
    answers = threading.Event()

    def nic_faults(seconds: float) -> str:
        answers.wait(WAIT_S)
        return f"nothing in {seconds:g} s"

    said: list[pb.ToCoordinator] = []
    context = SimpleNamespace(barrier_timeout_ms=1000, nic_faults=nic_faults)
    part = Part("ns/group", cast(PartContext, context))
    part._link = cast(Link, SimpleNamespace(send=said.append))
    epoch = SimpleNamespace(handle=5, number=1, failing=False, mask=True)
    part.epoch = cast(LocalEpoch, epoch)
    event = SimpleNamespace(kind="barrier_timeout", group=5, barrier=3, detail="rank 1 is missing")
    try:
        await asyncio.wait_for(part.hear(cast("Event", event)), WAIT_S / 2)
    finally:
        answers.set()
    assert said[0].overdue.reason == f"rank 1 is missing; {UNREAD}"
    await part.hear(cast("Event", event))
    assert said[1].overdue.reason == "rank 1 is missing; nothing in 1 s"


async def test_what_comes_in_time_is_taken() -> None:
    assert await in_time(WAIT_S, "late", lambda: "here") == "here"


async def test_a_look_that_does_not_end_is_waited_for_once(tmp_path: Path) -> None:
    answers, looks = threading.Event(), []

    class Stuck(NicFaults):
        def look(self) -> None:
            looks.append(1)
            answers.wait(WAIT_S)

    faults = Stuck(Machine(tmp_path))
    try:
        for _ in range(3):
            await asyncio.wait_for(faults.look_in_time(0.05), WAIT_S / 2)
        assert len(looks) == 1
    finally:
        answers.set()
    await asyncio.wait_for(asyncio.shield(cast("asyncio.Task[None]", faults._looking)), WAIT_S)
    await faults.look_in_time(WAIT_S)
    assert len(looks) == 2


async def test_the_agents_end_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()

    async def end() -> None:
        await ended.wait()

    slow = asyncio.create_task(named("the core", end(), say_s=0.0))
    async with asyncio.timeout(WAIT_S):
        while "the agent's end waits for the core" not in caplog.text:
            await asyncio.sleep(0.005)
    assert not slow.done()
    ended.set()
    await asyncio.wait_for(slow, WAIT_S)
