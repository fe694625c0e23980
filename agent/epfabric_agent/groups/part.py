"""This node's part in one group: its ranks, its link to the coordinator, the epoch in its core.

Called by session (join, leave, lost) and by the link's messages. While a rank joins or has joined,
one task finds the coordinator, attaches and follows what it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from epfabric import messages

from epfabric_agent.groups.context import PartContext
from epfabric_agent.groups.coordinator import NearLink
from epfabric_agent.groups.ending import drained
from epfabric_agent.groups.local_rank import LocalRank, Refusal, Stage
from epfabric_agent.groups.part_epoch import EpochPart
from epfabric_agent.groups.state import OPEN_S
from epfabric_agent.peers.link import Link, LinkBroken, NotCoordinator, OtherVersion
from epfabric_agent.proto import peer_pb2 as pb

LOOK_S = 0.1
LOOK_MOST_S = 1.0
JOIN_MARGIN_S = 5.0
DRAIN_MS = 20_000
LEAVE_S = 25.0
_log = logging.getLogger(__name__)


class Part(EpochPart):
    def __init__(self, group: str, context: PartContext) -> None:
        """`group` is namespace/name."""
        super().__init__(group, context)
        self._task: asyncio.Task[None] | None = None

    @property
    def in_use(self) -> bool:
        return bool(self.ranks or self.epoch or self._task)

    def renew(self, context: PartContext) -> None:
        """Goes on with this context, unless ranks here use the one before."""
        if not self.ranks and self.epoch is None:
            self._context = context

    def admit(self, rank: int, world_size: int, pod: str) -> int:
        """Checks a hello against the node's other ranks; the core's handle for its session.

        Raises Refusal, which names both pods.
        """
        holder = self.ranks.get(rank)
        if holder is not None:
            raise Refusal(
                "duplicate-rank",
                f"rank {rank} of group {self.group} is held by {holder.pod} on node "
                f"{self._context.node}; {pod} asked for it too: give each process its own rank",
            )
        for other in self.ranks.values():
            if other.stage in (Stage.OPEN, Stage.JOINING) and other.world_size != world_size:
                raise Refusal(
                    "world-size",
                    f"{pod} says that group {self.group} has {world_size} ranks, {other.pod} said "
                    f"{other.world_size}: give every pod of the group the same WORLD_SIZE",
                )
        if self._handle == 0:
            self._handle = self._context.next_handle()
        return self._handle

    async def join(self, local: LocalRank) -> messages.Reply:
        """Waits for the epoch; bounded by the coordinator's bounds, each with a margin."""
        if local.stage is not Stage.OPEN:
            raise Refusal("bad-state", f"this session is {local.stage.value}; join comes once")
        local.stage = Stage.JOINING
        local.answer = asyncio.get_running_loop().create_future()
        if self._link is not None:
            self._enter(local)
        self._follow_soon()
        limit_s = self._context.join_timeout_s + JOIN_MARGIN_S
        why = (
            f"no agent coordinates group {self.group} after {limit_s:g} s: rank 0 has not "
            "attached; look at the pod that should hold it, and at its node's agent"
        )
        done, _ = await asyncio.wait([local.answer], timeout=limit_s)
        if not done and self._in_epoch(local):
            # The last rank may have come just now: what follows has a bound of its own, which the
            # coordinator keeps. To withdraw before it passed would end the epoch for all.
            limit_s = OPEN_S + JOIN_MARGIN_S
            why = f"group {self.group} was not open {limit_s:g} s after all its ranks were there"
            done, _ = await asyncio.wait([local.answer], timeout=limit_s)
        if done:
            return local.answer.result()
        self._withdraw(local)
        return messages.ErrorReply(code="join-timeout", message=why)

    async def leave(self, local: LocalRank) -> messages.Reply:
        """Orderly end: what the rank began is finished, then nobody writes to it any more."""
        if local.stage is not Stage.JOINED:
            await self.lost(local, "it left before its group was open")
            return messages.LeaveReply()
        epoch, link = self.epoch, self._link
        if epoch is None or link is None:
            raise Refusal("group-failed", local.failure or "the epoch has ended")
        local.stage = Stage.LEAVING
        local.gone = asyncio.get_running_loop().create_future()
        if not await drained(local, DRAIN_MS / 1000):
            if not local.failure:
                why = f"its commands did not finish in {DRAIN_MS // 1000} s at leave"
                await self._lose(local, why)
            raise Refusal("group-failed", local.failure)
        link.send(pb.ToCoordinator(leaving=pb.Leaving(epoch=epoch.number, rank=local.rank)))
        try:
            await asyncio.wait_for(local.gone, LEAVE_S)
        except TimeoutError:
            await self._lose(local, f"the other nodes did not let it go in {LEAVE_S:g} s")
        if local.failure:
            raise Refusal("group-failed", local.failure)
        await self._drop([local])
        return messages.LeaveReply()

    async def lost(self, local: LocalRank, why: str) -> None:
        """The session ended; an epoch that it was part of fails."""
        if local.stage is Stage.LEAVING:
            return  # leave() brings it to its end
        if self._in_epoch(local):
            await self._lose(local, why)
            return
        if local.stage is Stage.JOINING:
            self._withdraw(local)
        if local.stage is not Stage.OVER:
            await self._drop([local])

    async def close(self, why: str) -> None:
        """The agent ends: everyone here fails, and the coordinator sees this node go."""
        await self._fail(why)
        await self._drop(list(self.ranks.values()))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=2.0)

    def _follow_soon(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            while self._wants_link():
                try:
                    await self._attend(await self._find())
                except NotCoordinator:
                    await asyncio.sleep(LOOK_S)
                except OtherVersion as error:
                    _log.warning("group %s: %s", self.group, error)
                    self._refuse_joining("abi", str(error))
                except LinkBroken as error:
                    _log.info("group %s: link broken: %s", self.group, error)
                    await asyncio.sleep(LOOK_S)
                except Exception:
                    _log.exception("group %s: following its coordinator failed", self.group)
                    await asyncio.sleep(LOOK_MOST_S)
        finally:
            self._task = None
            if self._wants_link():  # a rank joined while this task was being ended
                self._follow_soon()
            self._context.changed()

    def _refuse_joining(self, code: str, text: str) -> None:
        for local in list(self.ranks.values()):
            self._refused(pb.Refused(rank=local.rank, code=code, message=text))

    async def _find(self) -> Link:
        """Looks until the group has a coordinator; join() bounds it."""
        pause_s = LOOK_S
        while True:
            context = self._context
            if (here := context.coordinator(self.group)) is not None:
                return NearLink(here, context.node, context.endpoint, self._last_epoch)
            if (agent := await context.find(self.group)) is not None:
                return await context.client.attend(
                    agent, self.group, context.endpoint, self._last_epoch
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_MOST_S)

    async def _attend(self, link: Link) -> None:
        why = "it ended its part in the group"
        try:
            self._link = link
            for local in list(self.ranks.values()):
                if local.stage is Stage.JOINING:
                    self._enter(local)
            async with contextlib.aclosing(link.messages()) as said:
                async for message in said:
                    await self._on(message)
                    if not self._wants_link():
                        break
        except LinkBroken as error:
            why = str(error)
            raise
        finally:
            self._link = None
            try:
                if self._excluding is not None:  # it may be what ends the epoch, in order
                    await asyncio.wait([self._excluding])
                if self.epoch is not None and not self.epoch.closed:
                    if link.node != self._context.node and not self.epoch.failing:
                        self._context.orphaned(self.group)
                    await self._fail(
                        f"the agent of node {link.node}, which coordinates the group, was lost: "
                        f"{why}"
                    )
            finally:
                # This task may be cancelled again and again; the link is closed all the same.
                await asyncio.shield(self._aside(link.close()))

    def _in_epoch(self, local: LocalRank) -> bool:
        return self.epoch is not None and self.epoch.ranks.get(local.rank) is local

    def _wants_link(self) -> bool:
        busy = (Stage.JOINING, Stage.JOINED, Stage.LEAVING)
        return self.epoch is not None or any(r.stage in busy for r in self.ranks.values())

    def _withdraw(self, local: LocalRank) -> None:
        local.stage = Stage.OPEN
        self._say(pb.ToCoordinator(withdraw=pb.Withdraw(rank=local.rank)))

    def _unfollow(self) -> None:
        task = self._task
        if task is not None and task is not asyncio.current_task() and not self._wants_link():
            task.cancel()
