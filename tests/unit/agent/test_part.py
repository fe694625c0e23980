"""A node's part in a group that masks lost ranks, on the real core and with its coordinator."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from epfabric import messages
from epfabric_agent import _native
from epfabric_agent.groups.context import PartContext
from epfabric_agent.groups.coordinator import Coordinator, Seat
from epfabric_agent.groups.epoch import LocalEpoch
from epfabric_agent.groups.local_rank import LocalRank, Refusal, Stage
from epfabric_agent.groups.membership import Membership
from epfabric_agent.groups.part import JOIN_MARGIN_S, Part
from epfabric_agent.groups.peer_memory import TRIAL, Nvlink, Offered
from epfabric_agent.groups.state import Limits
from epfabric_agent.peers.client import PeerClient
from epfabric_agent.proto import peer_pb2 as pb
from epfabric_host import _producer

GROUP, WORLD = "ns/g", 2
RINGS, DEPTH, SIGNALS = 2, 64, 8
WAIT_S = 15.0


class HeldCore:
    """The core; these calls of it begin when they may."""

    def __init__(self, core: _native.Core) -> None:
        self.core = core
        names = ("mask_ranks", "exclude_ranks", "close_epoch", "open_epoch")
        self.may = {name: threading.Event() for name in names}
        self.opened = threading.Event()
        self.looked_at: Callable[[], object] = lambda: None
        """By the agent's loop, when the epoch is open."""
        self.go_on()

    def go_on(self) -> None:
        for event in self.may.values():
            event.set()

    def atomics(self, handle: int) -> str:
        self.looked_at()
        return str(self.core.atomics(handle))

    def __getattr__(self, name: str) -> Any:
        call, may = getattr(self.core, name), self.may.get(name)

        def held(*arguments: Any, **named: Any) -> None:
            assert may is None or may.wait(WAIT_S)
            call(*arguments, **named)
            if name == "open_epoch":
                self.opened.set()

        return call if may is None else held


class Node(Coordinator):
    """The only node of a group, and its coordinator; `told` is what the pods and the agent hear."""

    def __init__(self, join_s: float, cause_s: float) -> None:
        limits = Limits(join_s=WAIT_S, mask=True)
        super().__init__(Membership(GROUP, 0, limits, bytes(16)), lambda _: None, lambda: None)
        self.core = HeldCore(_native.Core(address="127.0.0.1", provider="", idle="adaptive"))
        self.told: list[tuple[str, int]] = []
        self.attached = 0
        self.figures_fail = False
        self.observed: Callable[[], None] = lambda: None
        self.part = Part(
            GROUP,
            PartContext(
                node="a",
                endpoint="a:1",
                core=self.core,
                client=cast("PeerClient", None),  # nobody else is there to be attended
                join_timeout_s=join_s,
                barrier_timeout_ms=60_000,
                dissemination=False,
                nic_faults=lambda seconds: f"NICs: nothing in {seconds:g} s",
                mask=True,
                find=lambda _: asyncio.sleep(0),
                observe=self.observe,
                changed=lambda: None,
                give_up=lambda why: self.told.append((why, -1)),
                cause_s=cause_s,
                coordinator=lambda _: self,
                next_handle=itertools.count(1).__next__,
                orphaned=lambda _: self.told.append(("orphaned", -1)),
                epoch_ended=lambda _, epoch, __: self.told.append(("epoch ended", epoch)),
            ),
        )

    def observe(self) -> None:
        self.observed()
        if self.figures_fail:
            raise RuntimeError("can't start new thread")

    def attach(self, node: str, endpoint: str, last_epoch: int) -> Seat:
        self.attached += 1
        self.seat = super().attach(node, endpoint, last_epoch)
        return self.seat

    def receive(self, seat: Seat, message: pb.ToCoordinator) -> None:
        super().receive(seat, message)
        if message.WhichOneof("kind") == "leaving":
            self.core.may["mask_ranks"].set()

    def hello(self, rank: int) -> LocalRank:
        handle = self.part.admit(rank, WORLD, f"ns/pod-{rank}")
        local = self.part.ranks[rank] = LocalRank(
            rank=rank,
            world_size=WORLD,
            pod=f"ns/pod-{rank}",
            handle=handle,
            sample=rank,
            on_failed=lambda *_: self.told.append(("failed", rank)),
            release=lambda: self.told.append(("released", rank)),
            shrink=lambda: self.told.append(("shrunk", rank)),
            native=self.core.core.open_session(
                group=handle, rank=rank, world=WORLD, rings=RINGS, depth=DEPTH, signals=SIGNALS,
                cpus=[-1, -1],
            ),
        )  # fmt: skip
        return local

    async def joined(self, epoch: int) -> list[LocalRank]:
        ranks = [self.hello(rank) for rank in range(WORLD)]
        for reply in await asyncio.gather(*(self.part.join(local) for local in ranks)):
            assert isinstance(reply, messages.JoinReply), reply
            assert reply.epoch == epoch
        return ranks

    async def leave(self, local: LocalRank) -> None:
        reply = await asyncio.wait_for(self.part.leave(local), WAIT_S)
        assert isinstance(reply, messages.LeaveReply)

    async def epoch_ended(self, epoch: int) -> None:
        """After the last leave was answered: the coordinator's node is the last to let it go."""
        await until(lambda: ("epoch ended", epoch) in self.told)
        await until(lambda: self.part.epoch is None)


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not check():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def node(join_s: float = WAIT_S, cause_s: float = WAIT_S) -> AsyncIterator[Node]:
    made = Node(join_s, cause_s)
    try:
        yield made
    finally:
        made.core.go_on()
        await made.part.close("the test ends")
        made.core.core.close()


def fills_a_ring(local: LocalRank) -> None:
    """As its pod might, with barriers that it waits in alone."""
    fds = local.session.share()
    try:
        segments = _producer.Segments(*fds, RINGS, DEPTH, SIGNALS, WORLD)
    finally:
        for fd in fds:
            os.close(fd)
    ring = _producer.Ring(segments, 0, 1)
    for _ in range(DEPTH):
        status, _ = ring.barrier(int(WAIT_S * 1e9))
        assert status == _producer.DONE
    assert ring.flush(int(WAIT_S * 1e9)) == _producer.DONE


async def test_an_epoch_ends_whose_last_round_masks_rank_0_while_all_others_leave() -> None:
    async with node() as here:
        lost, other = await here.joined(epoch=1)
        here.core.may["mask_ranks"].clear()  # until the other one has asked to leave
        masked = asyncio.create_task(here.part.lost(lost, "its process ended"))
        await here.leave(other)
        await asyncio.wait_for(masked, WAIT_S)
        await here.epoch_ended(1)
        for local in await here.joined(epoch=2):
            await here.leave(local)


async def test_an_epoch_that_fails_without_a_reason_ends_its_ranks_all_the_same() -> None:
    async with node() as here:
        ranks = await here.joined(epoch=1)
        here.seat.outbox.put_nowait(pb.ToMember(fail=pb.Fail(epoch=1)))
        await until(lambda: not here.part.ranks)
        assert all(local.failure for local in ranks)


async def test_an_epoch_that_the_core_opens_after_its_end_does_not_stay_there() -> None:
    async with node() as here:
        here.core.may["open_epoch"].clear()

        def observed() -> None:
            """The core was told that it failed, and knew nothing of it; the sessions are there."""
            here.core.go_on()
            assert here.core.opened.wait(WAIT_S)

        here.observed = observed
        ranks = [here.hello(rank) for rank in range(WORLD)]
        joins = [asyncio.create_task(here.part.join(local)) for local in ranks]
        await until(lambda: here.part.epoch is not None)
        handle = ranks[0].handle
        await here.part.lost(ranks[1], "its process ended")
        for reply in await asyncio.gather(*joins):
            assert isinstance(reply, messages.ErrorReply)

        def gone() -> bool:
            try:
                here.core.core.atomics(handle)
            except _native.NativeError as error:
                return "no open epoch" in str(error)
            return False

        await until(gone)
        for local in await here.joined(epoch=2):
            await here.leave(local)


async def test_a_join_does_not_end_an_epoch_that_opens_longer_than_ranks_are_waited_for() -> None:
    limit_s = 3.0
    async with node(limit_s - JOIN_MARGIN_S) as here:
        ranks = [here.hello(rank) for rank in range(WORLD)]
        for local in ranks:
            local.offers.add(TRIAL, Offered(-1, 4096, ""))
        joins = [asyncio.create_task(here.part.join(local)) for local in ranks]
        await until(lambda: all(local.tried is not None for local in ranks))
        await asyncio.wait(joins, timeout=limit_s + 1)  # they try each other's memory meanwhile
        for local in ranks:
            local.say(Nvlink("none", "tried for long"))
        for reply in await asyncio.wait_for(asyncio.gather(*joins), WAIT_S):
            assert isinstance(reply, messages.JoinReply), reply
        for local in ranks:
            await here.leave(local)


async def test_an_epoch_that_fails_while_ranks_try_their_memory_ends_at_once() -> None:
    async with node() as here:
        ranks = [here.hello(rank) for rank in range(WORLD)]
        for local in ranks:
            local.offers.add(TRIAL, Offered(-1, 4096, ""))
        joins = [asyncio.create_task(here.part.join(local)) for local in ranks]
        await until(lambda: all(local.tried is not None for local in ranks))
        here.seat.outbox.put_nowait(pb.ToMember(fail=pb.Fail(epoch=1, reason="another node")))
        for reply in await asyncio.wait_for(asyncio.gather(*joins), WAIT_S):
            assert isinstance(reply, messages.ErrorReply), reply
            assert "another node" in reply.message
        assert all(local.nvlink is None for local in ranks), "it was waited for what they try"


async def test_ranks_try_no_memory_for_an_epoch_that_failed_when_it_was_just_open() -> None:
    async with node() as here:
        ranks = [here.hello(rank) for rank in range(WORLD)]
        for local in ranks:
            local.offers.add(TRIAL, Offered(-1, 4096, ""))
            local.on_trial = lambda _: here.told.append(("asked", -1))
        lost: list[asyncio.Task[None]] = []

        def open_now() -> None:
            work = here.part.lost(ranks[1], "its process ended")
            lost.append(asyncio.create_task(work))  # before what comes of the epoch

        here.core.looked_at = open_now
        joins = [asyncio.create_task(here.part.join(local)) for local in ranks]
        for reply in await asyncio.wait_for(asyncio.gather(*joins), WAIT_S):
            assert isinstance(reply, messages.ErrorReply), reply
        await asyncio.wait_for(asyncio.gather(*lost), WAIT_S)
        await here.epoch_ended(1)
        assert ("asked", -1) not in here.told


async def test_the_core_forgets_a_group_whose_epoch_does_not_end_that_opened_too_late() -> None:
    def open_epoch(*_: Any, **__: Any) -> None:
        epoch.fails()

    def does_not_end(handle: int, reason: str) -> None:
        raise _native.NativeError("a proxy did not stop")

    forgotten: list[int] = []
    core = SimpleNamespace(
        open_epoch=open_epoch, fail_epoch=does_not_end, forget_group=forgotten.append
    )
    linked: list[int] = []
    rank = SimpleNamespace(rank=0, handle=5, session=None, linked=lambda: linked.append(0))
    ranks = [cast("LocalRank", rank)]
    epoch = LocalEpoch(cast("_native.Core", core), pb.Open(epoch=1), ranks, "a")
    assert await epoch.open(barrier_timeout_ms=1000) == "a proxy did not stop"
    assert forgotten == [5]
    assert linked == [0]  # no memory is kept free for its links


async def test_a_plan_that_cannot_be_is_refused_to_those_who_join() -> None:
    async with node() as here:
        joins = [asyncio.create_task(here.part.join(here.hello(0)))]
        await until(lambda: here.attached == 1)
        here.seat.outbox.put_nowait(pb.ToMember(open=pb.Open(epoch=1, ranks=[pb.RankInfo(node=7)])))
        (reply,) = await asyncio.wait_for(asyncio.gather(*joins), WAIT_S)
        assert isinstance(reply, messages.ErrorReply)
        assert "cannot be" in reply.message


async def test_ranks_that_a_coordinator_lets_go_or_excludes_untimely_stay_in_their_epoch() -> None:
    async with node() as here:
        ranks = await here.joined(epoch=1)
        here.seat.outbox.put_nowait(pb.ToMember(leave_done=pb.LeaveDone(epoch=1, ranks=[0, 1])))
        here.seat.outbox.put_nowait(pb.ToMember(exclude=pb.Exclude(epoch=1, ranks=[0, 1])))
        for local in ranks:
            await here.leave(local)
        await here.epoch_ended(1)


async def test_the_next_epoch_opens_though_the_last_figures_of_one_were_lost() -> None:
    async with node() as here:
        here.figures_fail = True
        for epoch in (1, 2):
            for local in await here.joined(epoch=epoch):
                await here.leave(local)


async def test_a_rank_that_is_masked_while_it_leaves_is_told_and_its_node_goes_on() -> None:
    async with node() as here:
        lost, other = await here.joined(epoch=1)
        fills_a_ring(lost)  # so that its leave does not end
        leave = asyncio.create_task(here.part.leave(lost))
        await until(lambda: lost.stage is Stage.LEAVING)
        event = SimpleNamespace(
            kind="lost", group=lost.handle, ranks=[0], rank=0, detail="a write to it failed"
        )
        await here.part.hear(cast("_native.Event", event))
        with pytest.raises(Refusal, match="a write to it failed") as told:
            await asyncio.wait_for(leave, WAIT_S)
        assert told.value.code == "group-failed"
        await asyncio.wait_for(lost.ended.wait(), WAIT_S)
        assert here.part.epoch is not None
        assert not here.part.epoch.failing
        # Its first proxy serves the node's barriers, so that its CPU is not free yet.
        assert here.told == [("failed", 0), ("shrunk", 0)]
        await here.leave(other)
        await here.epoch_ended(1)
        assert here.told.count(("released", 0)) == 1


@pytest.mark.parametrize("cause", ["its process ended", ""])
async def test_a_link_that_breaks_since_its_node_fails_is_not_told_as_the_cause(cause: str) -> None:
    async with node(cause_s=WAIT_S if cause else 0.05) as here:
        ranks = await here.joined(epoch=1)
        moved = SimpleNamespace(kind="moved", group=ranks[0].handle, ranks=[], rank=1, detail="")
        await here.part.hear(cast("_native.Event", moved))  # it ends nothing, so is no reason
        event = SimpleNamespace(
            kind="failed", group=ranks[0].handle, ranks=[1], rank=1, detail="a write to it failed"
        )
        heard = asyncio.create_task(here.part.hear(cast("_native.Event", event)))
        for _ in range(20):  # it has told the link's end by then, unless it waits for the cause
            await asyncio.sleep(0)
        if cause:
            here.seat.outbox.put_nowait(pb.ToMember(fail=pb.Fail(epoch=1, reason=cause)))
        await asyncio.wait_for(heard, WAIT_S)
        await here.epoch_ended(1)
        link = "node a: lost rank 1 on node a: a write to it failed"
        assert [local.failure for local in ranks] == [cause or link] * WORLD


@pytest.mark.parametrize("held", ["exclude_ranks", "close_epoch"])
async def test_an_epoch_that_ends_in_order_is_not_ended_again_when_its_link_breaks(
    held: str,
) -> None:
    async with node() as here:
        lost, other = await here.joined(epoch=1)
        epoch = here.part.epoch
        assert epoch is not None
        for name in ("exclude_ranks", "close_epoch"):
            here.core.may[name].clear()
        masked = asyncio.create_task(here.part.lost(lost, "its process ended"))
        await here.leave(other)
        await until(lambda: not epoch.kept)
        if held == "close_epoch":
            here.core.may["exclude_ranks"].set()
            await until(lambda: epoch.closed)
        here.dissolve()
        await until(lambda: here.part._link is None)  # it knows
        here.core.go_on()
        await asyncio.wait_for(masked, WAIT_S)
        await here.epoch_ended(1)
        assert not epoch.failing
        assert here.told.count(("epoch ended", 1)) == 1
        assert here.told.count(("released", 0)) == 1
