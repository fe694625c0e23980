"""A group of thousands of ranks through a real coordinator, and the EPGroup that it writes.

For benches/scale.py. Agents are simulated in this process: each has its seat at the coordinator,
lets its ranks enter, answers what the coordinator asks, and looks at what it is told.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from epfabric_agent.groups.coordinator import Coordinator
from epfabric_agent.groups.membership import Membership
from epfabric_agent.groups.ranges import parse_ranges
from epfabric_agent.groups.state import Limits
from epfabric_agent.kube import api as kube
from epfabric_agent.kube import paths
from epfabric_agent.kube.group_report import GroupReporter
from epfabric_agent.peers.client import Agent
from epfabric_agent.pods import Pod
from epfabric_agent.proto import peer_pb2 as pb
from epfabric_crds.group import BarrierStatistics
from harness.cluster import Cluster

from .scale_site import FABRIC
from .series import LESS, OURS, Line

BLOB = bytes(300)  # what a session with four proxies tells of itself
RANKS_A_NODE = 8
ARRIVE_S = 20.0  # all ranks, at random
WAIT_S = 180.0
MOST_BYTES = 256 * 1024
SEED = 1


@dataclass(frozen=True)
class Placement:
    """Which node has which ranks."""

    case: str
    ranks: int
    name_bytes: int  # of a node
    scattered: bool  # rank after rank to the next node, so that no node has a range

    def nodes(self) -> dict[str, list[int]]:
        count = self.ranks // RANKS_A_NODE
        out: dict[str, list[int]] = {}
        for index in range(count):
            name = f"node-{index:04}.".ljust(self.name_bytes, "x")
            first = index * RANKS_A_NODE
            every = range(index, self.ranks, count)
            out[name] = list(every if self.scattered else range(first, first + RANKS_A_NODE))
        return out


class CountingApi(kube.Api):
    """Counts what is written."""

    writes = 0

    def apply(self, path: str, body: kube.Object, manager: str) -> kube.Object:
        self.writes += 1
        return super().apply(path, body, manager)


class Member:
    """An agent that takes part. `faults` are what it should not have been told."""

    def __init__(self, coordinator: Coordinator, node: str, number: int, ranks: list[int]) -> None:
        self.ranks, self.node = ranks, node
        self.opened = self.started = self.ended = 0
        self.faults: list[str] = []
        self._coordinator = coordinator
        self._seat = coordinator.attach(node, f"10.{number >> 8}.{number & 255}.1:7470", 0)

    def enter(self, rank: int, world: int) -> None:
        pod = f"jobs/rank-{rank}"
        self.say(pb.ToCoordinator(enter=pb.Enter(rank=rank, world_size=world, pod=pod, blob=BLOB)))

    def say(self, message: pb.ToCoordinator) -> None:
        self._coordinator.receive(self._seat, message)

    async def run(self) -> None:
        while (message := await self._seat.outbox.get()) is not None:
            match message.WhichOneof("kind"):
                case "open":
                    self._open(message.open)
                    self.say(pb.ToCoordinator(opened=pb.Opened(epoch=message.open.epoch)))
                case "start":
                    self.started += 1
                case "ranks_left":
                    left = pb.Quiesced(epoch=message.ranks_left.epoch)
                    self.say(pb.ToCoordinator(quiesced=left))
                case "leave_done" | "fail":
                    self.ended += 1
                case other:
                    self.faults.append(f"{self.node} was told {other}")

    def _open(self, plan: pb.Open) -> None:
        self.opened += 1
        mine = [info.rank for info in plan.ranks if plan.nodes[info.node] == self.node]
        if mine != self.ranks:
            self.faults.append(f"{self.node} was told that it has ranks {mine[:10]}")


def measure(
    cluster: Cluster,
    namespace: str,
    ranks: int,
    say: Callable[[str], None],
    arrive_s: float = ARRIVE_S,
) -> Iterator[Line]:
    """Two groups of so many ranks, which come within `arrive_s`; EPGroups are in `namespace`."""
    for placement in (
        Placement(f"group of {ranks}", ranks, 44, scattered=False),
        Placement(f"group of {ranks}, scattered, long names", ranks, 63, scattered=True),
    ):
        say(placement.case)
        yield from asyncio.run(_live(cluster, namespace, placement, arrive_s))


async def _live(
    cluster: Cluster, namespace: str, placement: Placement, arrive_s: float
) -> list[Line]:
    return await _Life(cluster, namespace, placement, arrive_s).run()


class _Life:
    """One group from its first rank to its end; then a second epoch that fails."""

    def __init__(
        self, cluster: Cluster, namespace: str, placement: Placement, arrive_s: float
    ) -> None:
        self._placement, self._arrive_s = placement, arrive_s
        self._api = CountingApi(cluster.client)
        own = Agent(next(iter(placement.nodes())), "10.0.0.1:7470")
        statistics = BarrierStatistics(count=1, p50_seconds=1e-5, p99_seconds=2e-5)
        self._reporter = GroupReporter(self._api, FABRIC, lambda: own, lambda handle: statistics)
        name = "scattered" if placement.scattered else "large"
        self._pod = Pod("v", namespace, "rank-0", name, None, Path("/nowhere"))
        bounds = Limits(join_s=WAIT_S, open_s=WAIT_S, quiesce_s=WAIT_S)
        membership = Membership(self._pod.group_key, 0, bounds, bytes(16))
        self._coordinator = Coordinator(
            membership, lambda state: self._reporter.state(self._pod, state), lambda: None
        )
        self._largest = 0

    async def run(self) -> list[Line]:
        world = self._placement.ranks
        members = [
            Member(self._coordinator, node, number, ranks)
            for number, (node, ranks) in enumerate(self._placement.nodes().items())
        ]
        tasks = [asyncio.create_task(member.run()) for member in members]
        tasks.append(asyncio.create_task(self._reporter.run()))
        try:
            spent, slowest = await self._enter(members, self._arrive_s)
            formed = await self._phase("Ready", 1)
            until_ready = self._api.writes
            self._reporter.refresh(self._pod.group_key, 1, 1)
            for member in members:
                for rank in member.ranks:
                    member.say(pb.ToCoordinator(leaving=pb.Leaving(epoch=1, rank=rank)))
            await self._phase("Completed", 1)
            first = self._api.writes
            await self._enter(members, 0.0)
            await self._phase("Ready", 2)
            lost = pb.Lost(epoch=2, rank=members[-1].ranks[-1], reason="its process ended")
            members[-1].say(pb.ToCoordinator(lost=lost))
            await self._phase("Failed", 2)
        finally:
            for task in tasks:
                task.cancel()
        told = sorted(r for n in formed["status"]["nodes"] for r in parse_ranges(n["ranks"]))
        faults = [fault for member in members for fault in member.faults]
        right = all((m.opened, m.started) == (2, 2) and m.ended for m in members) and not faults
        right = right and told == list(range(world))
        return [
            self._line("object", "B", self._largest, right and self._largest <= MOST_BYTES),
            self._line("writes_until_ready", "count", until_ready),
            self._line("writes_of_an_epoch", "count", first),
            self._line("coordinator_cpu", "s", spent),
            self._line("longest_step", "s", slowest),
        ]

    async def _enter(self, members: list[Member], arrive_s: float) -> tuple[float, float]:
        """CPU seconds of all steps of the coordinator, and of the longest one."""
        arrivals = [(member, rank) for member in members for rank in member.ranks]
        random.Random(SEED).shuffle(arrivals)
        begin, spent, slowest = time.monotonic(), 0.0, 0.0
        for number, (member, rank) in enumerate(arrivals):
            before = time.thread_time()
            member.enter(rank, self._placement.ranks)
            step = time.thread_time() - before
            spent, slowest = spent + step, max(slowest, step)
            due = begin + arrive_s * number / len(arrivals)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        return spent, slowest

    async def _phase(self, phase: str, epoch: int) -> kube.Object:
        deadline = time.monotonic() + WAIT_S
        path = paths.group(self._pod.namespace, self._pod.group)
        while time.monotonic() < deadline:
            found = await asyncio.to_thread(self._api.get, path) or {}
            self._largest = max(self._largest, len(json.dumps(found, separators=(",", ":"))))
            status = found.get("status", {})
            if (status.get("phase"), status.get("epoch")) == (phase, epoch):
                return found
            await asyncio.sleep(0.1)
        raise TimeoutError(f"the EPGroup is not {phase} after {WAIT_S:.0f} s: {status}")

    def _line(self, metric: str, unit: str, value: float, right: bool = True) -> Line:
        return Line(self._placement.case, metric, unit, LESS, OURS, 0, right, (float(value),))
