"""What the coordinator decides, carried out on this node: an epoch opens, ranks go, it ends.

The base of groups.part.Part, which keeps the link to the coordinator and answers sessions.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from epfabric import messages

from epfabric_agent.groups.bounds import fault_of_plan
from epfabric_agent.groups.context import PartContext
from epfabric_agent.groups.ending import drop, end_failed, observe_end
from epfabric_agent.groups.epoch import LocalEpoch
from epfabric_agent.groups.local_rank import LocalRank, Refusal, Stage, said
from epfabric_agent.groups.peer_memory import try_among, verdict
from epfabric_agent.groups.ranges import spoken
from epfabric_agent.peers.link import Link
from epfabric_agent.proto import peer_pb2 as pb
from epfabric_agent.threads import in_time

if TYPE_CHECKING:
    from epfabric_agent._native import Event

COUNTERS_S = 0.3  # a group waits for its end meanwhile
MASK_S = 40.0  # a round of departures before, and its own
UNREAD = "the counters of this node's NICs could not be read in time"
_log = logging.getLogger(__name__)


class EpochPart(ABC):
    """Ranks of one group on this node, and their epoch."""

    def __init__(self, group: str, context: PartContext) -> None:
        """`group` is namespace/name."""
        self.group = group
        self.ranks: dict[int, LocalRank] = {}
        self.epoch: LocalEpoch | None = None
        self._context = context
        self._link: Link | None = None
        self._side: set[asyncio.Task[None]] = set()
        self._excluding: asyncio.Task[None] | None = None  # the last one
        self._last_epoch = 0
        self._handle = 0

    @abstractmethod
    def _unfollow(self) -> None:
        """Ends the link to the coordinator if nobody needs it any more."""

    async def hear(self, event: Event) -> None:
        """What the core says of the epoch that has the event's handle."""
        epoch = self.epoch
        if epoch is None or epoch.handle != event.group or epoch.failing:
            return
        if event.kind == "moved":  # nothing is lost; the log has it
            return
        number, reason = epoch.number, event.detail
        if event.kind == "barrier_timeout":
            late_s = self._context.barrier_timeout_ms / 1000
            look = partial(self._context.nic_faults, late_s)
            reason += "; " + await in_time(COUNTERS_S, UNREAD, look)
        elif event.kind == "failed":
            # A node that lost a rank tells the coordinator why, and ends its links to this node:
            # what comes of that may be seen here before the cause is heard.
            await epoch.fails_in(self._context.cause_s)
        if self.epoch is not epoch or epoch.failing:
            return
        if event.kind == "lost":
            gone = pb.Unreachable(epoch=number, ranks=event.ranks, reason=reason)
            self._say(pb.ToCoordinator(unreachable=gone))
        elif event.kind == "barrier_timeout" and epoch.mask:
            overdue = pb.Overdue(epoch=number, barrier=event.barrier, reason=reason)
            self._say(pb.ToCoordinator(overdue=overdue))
        else:
            await self._broken(event.ranks, reason, event.rank)

    async def _broken(self, ranks: list[int], detail: str, about: int = -1) -> None:
        """The core cannot go on with the epoch, because of these ranks.

        Without any, `about` is a rank that `detail` speaks of, or -1.
        """
        if self.epoch is None or self.epoch.failing or self.epoch.closed:
            return
        reason = f"lost {self.epoch.whereabouts(ranks)}: {detail}" if ranks else detail
        if not ranks and about >= 0:
            reason = f"{detail}; look at {self.epoch.whereabouts([about])}"
        broken = pb.Broken(epoch=self.epoch.number, reason=reason)
        self._say(pb.ToCoordinator(broken=broken))
        await self._fail(f"node {self._context.node}: {reason}")

    async def _on(self, message: pb.ToMember) -> None:
        match message.WhichOneof("kind"):
            case "open":
                await self._open(message.open)
            case "start":
                await self._start(message.start.epoch)
            case "refused":
                self._refused(message.refused)
            case "ranks_left" if self._is_now(message.ranks_left.epoch):
                self._aside(self._ranks_left(message.ranks_left))
            case "leave_done" if self._is_now(message.leave_done.epoch):
                await self._leave_done(message.leave_done)
            case "mask" if self._is_now(message.mask.epoch):
                self._aside(self._mask(message.mask))
            case "exclude" if self._is_now(message.exclude.epoch):
                self._excluding = self._aside(self._exclude(list(message.exclude.ranks)))
            case "roll_call" if self.epoch is not None and self._is_now(message.roll_call.epoch):
                number, barrier = message.roll_call.epoch, message.roll_call.barrier
                ranks = self.epoch.absent(barrier)
                absent = pb.Absent(epoch=number, barrier=barrier, ranks=ranks)
                self._say(pb.ToCoordinator(absent=absent))
            case "fail" if self._is_now(message.fail.epoch):
                await self._fail(message.fail.reason)

    async def _open(self, plan: pb.Open) -> None:
        me = self._context.node
        if fault := fault_of_plan(plan, me, self.ranks):
            error = f"the group's coordinator opens what cannot be: {fault}"
            self._refuse_all(list(self.ranks.values()), error)
            self._say(pb.ToCoordinator(opened=pb.Opened(epoch=plan.epoch, error=error)))
            return
        mine = [info.rank for info in plan.ranks if plan.nodes[info.node] == me]
        ranks = [self.ranks[r] for r in mine if r in self.ranks]
        self._last_epoch = plan.epoch
        if len(ranks) != len(mine) or any(r.stage is not Stage.JOINING for r in ranks):
            error = "a rank of this node ended while the group opened"
            self._refuse_all(ranks, error)
        elif self.epoch is not None:
            error = f"epoch {self.epoch.number} has not ended on this node"
            self._refuse_all(ranks, error)
        else:
            epoch = self.epoch = LocalEpoch(self._context.core, plan, ranks, me)
            self._handle = 0
            for local in ranks:
                local.nodes = epoch.nodes
            error = await epoch.open(self._context.barrier_timeout_ms)
            if not error:  # it may have ended meanwhile, since a rank was lost
                self._aside(self._try_among(epoch))
                return
        opened = pb.Opened(epoch=plan.epoch, error=error)
        self._say(pb.ToCoordinator(opened=opened))

    async def _try_among(self, epoch: LocalEpoch) -> None:
        """Beside what the coordinator says, which may be that the epoch fails."""
        if epoch.failing or epoch.closed:
            return
        ranks = list(epoch.ranks.values())
        await try_among(ranks)
        if epoch.failing or epoch.closed:
            return
        found = verdict(ranks)
        _log.info("group %s: nvlink %s: %s", self.group, found.kind, found.reason)
        self._say(pb.ToCoordinator(opened=pb.Opened(epoch=epoch.number)))

    async def _start(self, number: int) -> None:
        epoch = self.epoch
        if epoch is None or epoch.number != number or epoch.failing:
            return
        if error := await epoch.start():
            await self._broken([], error)
            return
        for local in epoch.ranks.values():
            local.stage = Stage.JOINED
            local.settle(messages.JoinReply(epoch=number, regions=epoch.regions))
        self._context.changed()

    def _refuse_all(self, ranks: Iterable[LocalRank], error: str) -> None:
        for local in ranks:
            self._refused(pb.Refused(rank=local.rank, code="group-failed", message=error))

    def _refused(self, refused: pb.Refused) -> None:
        local = self.ranks.get(refused.rank)
        if local is not None and local.stage is Stage.JOINING:
            local.stage = Stage.OPEN
            local.settle(Refusal(refused.code, refused.message).reply())

    async def _ranks_left(self, left: pb.RanksLeft) -> None:
        epoch = self.epoch
        if epoch is None:
            return
        if error := await epoch.stop_writing_to(left.ranks):
            await self._broken([], error)
            return
        self._say(pb.ToCoordinator(quiesced=pb.Quiesced(epoch=left.epoch)))

    async def _leave_done(self, done: pb.LeaveDone) -> None:
        epoch = self.epoch
        if epoch is None:
            return
        leaving = epoch.take(self._in_stage(done.ranks, Stage.LEAVING))
        if done.over:
            epoch.kept = False
        await self._close_if_empty(epoch)
        for local in leaving:
            local.let_go()

    async def _mask(self, mask: pb.Mask) -> None:
        epoch = self.epoch
        if epoch is None:
            return
        here = f"group {self.group}, epoch {epoch.number}"
        _log.warning("%s: %s masked: %s", here, spoken(mask.ranks), mask.reason)
        lost = [epoch.ranks[rank] for rank in mask.ranks if rank in epoch.ranks]
        # Before quiesced is said: that it is over may be heard while these are being excluded.
        if lost and self._context.coordinator(self.group) is not None:
            epoch.kept = True
        for local in lost:
            local.failure, local.stage = said(mask.reason), Stage.MASKED
        if error := await epoch.show_masked(list(mask.ranks)):
            await self._broken([], error)
            return
        for local in lost:
            local.on_failed(epoch.number, local.failure)
        self._say(pb.ToCoordinator(quiesced=pb.Quiesced(epoch=mask.epoch)))

    async def _exclude(self, ranks: list[int]) -> None:
        epoch = self.epoch
        if epoch is None:
            return
        masked = self._in_stage(ranks, Stage.MASKED)
        ranks = [rank for rank in ranks if rank not in epoch.ranks or rank in masked]
        if error := await epoch.exclude(ranks):
            await self._broken([], error)
            return
        without = spoken(epoch.masked)
        _log.warning("group %s, epoch %d goes on without %s", self.group, epoch.number, without)
        lost = epoch.take(ranks)
        epoch.lost += lost
        await self._close_if_empty(epoch)
        await self._drop(lost)
        for local in lost:
            local.let_go()

    def _in_stage(self, ranks: Iterable[int], stage: Stage) -> list[int]:
        """Those of this node. Another stage is a coordinator's fault: its rank would never hear."""
        return [r for r in ranks if (local := self.ranks.get(r)) and local.stage is stage]

    async def _close_if_empty(self, epoch: LocalEpoch) -> None:
        if epoch.ranks or epoch.kept or epoch.failing or epoch.closed:
            return
        epoch.closed = True
        await asyncio.shield(self._aside(self._close(epoch)))

    async def _close(self, epoch: LocalEpoch) -> None:
        """A task of its own: whoever waits for it may be cancelled."""
        try:
            await observe_end(self._context.observe)
            await epoch.close()
        finally:
            self._over(epoch)

    async def _lose(self, local: LocalRank, why: str) -> None:
        epoch = self.epoch
        if epoch is None or epoch.failing or epoch.ranks.get(local.rank) is not local:
            return
        lost = pb.Lost(epoch=epoch.number, rank=local.rank, reason=why)
        self._say(pb.ToCoordinator(lost=lost))
        if epoch.mask and local.stage is not Stage.JOINING:
            await self._until_masked(local, why)
            return
        where = f"{local.pod} on node {self._context.node}"
        await self._fail(f"rank {local.rank} ({where}) was lost: {why}")

    async def _until_masked(self, local: LocalRank, why: str) -> None:
        if local.gone is None or local.gone.done():
            local.gone = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait_for(asyncio.shield(local.gone), MASK_S)
        except TimeoutError:
            await self._fail(
                f"rank {local.rank} ({local.pod}) was lost ({why}), and its group's coordinator "
                f"did not mask it in {MASK_S:g} s"
            )

    async def _fail(self, reason: str) -> None:
        epoch = self.epoch
        if epoch is None or epoch.failing or epoch.closed:
            return
        _log.warning("group %s, epoch %d failed: %s", self.group, epoch.number, reason)
        epoch.fails()
        for local in epoch.ranks.values():
            local.say(None)  # nobody waits for what it tries
        await asyncio.shield(self._aside(self._end(epoch, reason)))

    async def _end(self, epoch: LocalEpoch, reason: str) -> None:
        """A task of its own: whoever waits for it may be cancelled."""
        try:
            await end_failed(epoch, reason, self._context.observe)
        finally:
            self._over(epoch)
        await self._drop(epoch.ranks.values())

    def _over(self, epoch: LocalEpoch) -> None:
        """Whatever went wrong at its end: the next one can open."""
        try:
            self._count_no_more(epoch)
        finally:
            self.epoch = None

    def _count_no_more(self, epoch: LocalEpoch) -> None:
        for local in epoch.lost:
            if local.serving:
                local.release()
        self._context.epoch_ended(self.group, epoch.number, epoch.handle)
        self._context.core.forget_group(epoch.handle)

    async def _drop(self, ranks: Iterable[LocalRank]) -> None:
        gone = [local for local in ranks if local.stage is not Stage.OVER]
        for local in gone:
            local.stage = Stage.OVER
            local.settle(Refusal("group-failed", local.failure or "the session ended").reply())
        await asyncio.shield(self._aside(self._give_back(gone)))
        self._unfollow()
        self._context.changed()

    async def _give_back(self, gone: list[LocalRank]) -> None:
        await observe_end(self._context.observe)
        await asyncio.gather(*(drop(local, self._context.give_up) for local in gone))
        for local in gone:
            if self.ranks.get(local.rank) is local:
                del self.ranks[local.rank]
            local.ended.set()

    def _enter(self, local: LocalRank) -> None:
        enter = pb.Enter(
            rank=local.rank,
            world_size=local.world_size,
            pod=local.pod,
            region_bytes=local.session.region_bytes,
            blob=local.session.describe(),
        )
        self._say(pb.ToCoordinator(enter=enter))

    def _say(self, message: pb.ToCoordinator) -> None:
        if self._link is not None:
            self._link.send(message)

    def changed(self) -> None:
        """What a status shows of this group."""
        self._context.changed()

    def _is_now(self, number: int) -> bool:
        return self.epoch is not None and self.epoch.number == number

    def _aside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._side.add(task)
        task.add_done_callback(self._side.discard)
        return task
