"""One epoch as this node's core runs it: the blocking calls of the core, off the agent's loop.

Used by groups.part only. Every call has the core's own bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import ParamSpec

from epfabric_agent.groups.epoch_core import EpochCore
from epfabric_agent.groups.local_rank import LocalRank
from epfabric_agent.groups.ranges import spoken
from epfabric_agent.proto import peer_pb2 as pb
from epfabric_agent.threads import ending, serving

P = ParamSpec("P")
_log = logging.getLogger(__name__)


class LocalEpoch:
    """The ranks of this node in one epoch."""

    def __init__(
        self, core: EpochCore, plan: pb.Open, ranks: Iterable[LocalRank], node: str
    ) -> None:
        self._core = core
        self._plan = plan
        self.node = node
        self.number = plan.epoch
        self.ranks = {local.rank: local for local in ranks}
        self.handle = next(iter(self.ranks.values())).handle
        self.nodes = tuple(plan.nodes)
        self.regions = tuple(info.region_bytes for info in plan.ranks)
        self._ends = asyncio.Event()
        self.mask = plan.mask
        self.masked: set[int] = set()
        self.lost: list[LocalRank] = []
        """Those of this node that it goes on without."""
        self.kept = False
        """Stays without ranks: the coordinator's node, for a lost one's part in barriers."""
        self.closed = False

    @property
    def failing(self) -> bool:
        """It ends, and not in order."""
        return self._ends.is_set()

    def fails(self) -> None:
        self._ends.set()

    async def fails_in(self, limit_s: float) -> None:
        """Returns when it is failing, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ends.wait(), limit_s)

    def take(self, ranks: Iterable[int]) -> list[LocalRank]:
        """Those of this node, which are no longer part of the epoch."""
        return [local for rank in ranks if (local := self.ranks.pop(rank, None)) is not None]

    def whereabouts(self, ranks: Iterable[int]) -> str:
        """For people: `ranks 0-1 on node a, rank 4 on node c`."""
        node_of = {info.rank: self.nodes[info.node] for info in self._plan.ranks}
        found: dict[str, list[int]] = {}
        for rank in ranks:
            found.setdefault(node_of.get(rank, "unknown"), []).append(rank)
        return ", ".join(f"{spoken(some)} on node {n}" for n, some in found.items())

    async def open(self, barrier_timeout_ms: int) -> str:
        """Connects with every rank; why it could not, or nothing."""
        from epfabric_agent._native import NativeError, RemoteRank

        plan = self._plan
        by_node: list[list[int]] = [[] for _ in plan.nodes]
        for info in plan.ranks:
            by_node[info.node].append(info.rank)
        remote = [
            RemoteRank(info.rank, info.node, info.blob)
            for info in plan.ranks
            if info.rank not in self.ranks
        ]
        ranks = list(self.ranks.values())
        local = [rank.session for rank in ranks]

        def work() -> None:
            """Not cut off where nobody waits for it any more."""
            self._core.open_epoch(
                self.handle,
                self.number,
                local,
                remote,
                plan.leader_rank,
                by_node,
                barrier_timeout_ms,
                mask=plan.mask,
                uid=plan.uid,
                dissemination=plan.dissemination,
            )
            if self.failing or self.closed:  # what ended it may have come before the core knew it
                try:
                    self._core.fail_epoch(self.handle, "it ended while it opened")
                finally:
                    self._core.forget_group(self.handle)
                raise NativeError("the epoch ended while it opened")

        try:
            await serving(work)
            _log.info("epoch %d: atomics are %s", self.number, self._core.atomics(self.handle))
        except NativeError as error:
            return str(error) or "the core gave no reason"
        finally:
            for rank in ranks:
                rank.linked()
        return ""

    async def start(self) -> str:
        """Lets the proxies take commands; why they cannot, or nothing."""
        return await self._try(self._core.start_epoch, self.handle)

    async def stop_writing_to(self, ranks: Iterable[int]) -> str:
        """Returns when no proxy of this node writes to these ranks; or why that failed."""
        for rank in ranks:
            if error := await self._try(self._core.rank_left, self.handle, rank):
                return error
        return ""

    async def show_masked(self, ranks: list[int]) -> str:
        """Returns when every session's mask shows these ranks and no proxy writes to them; or why
        that failed."""
        return await self._try(self._core.mask_ranks, self.handle, ranks)

    async def exclude(self, ranks: list[int]) -> str:
        """Barriers go on without these ranks; or why they cannot."""
        self.masked.update(ranks)
        return await self._try(self._core.exclude_ranks, self.handle, ranks)

    def absent(self, barrier: int) -> list[int]:
        """Ranks of this node that have not entered the barrier."""
        from epfabric_agent._native import NativeError

        try:
            return self._core.absent(self.handle, barrier)
        except NativeError:
            return []

    def fail(self, reason: str) -> asyncio.Task[None]:
        """Sets the abort words and stops the proxies; the task ends when they stand still."""
        self.fails()
        return asyncio.create_task(self._end(self._core.fail_epoch, self.handle, reason))

    async def close(self) -> None:
        """After the last local rank has left."""
        await self._end(self._core.close_epoch, self.handle)

    async def _try(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> str:
        from epfabric_agent._native import NativeError

        try:
            await ending(call, *args, **kwargs)
        except NativeError as error:
            return str(error) or "the core gave no reason"
        return ""

    async def _end(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        from epfabric_agent._native import NativeError

        try:
            await ending(call, *args, **kwargs)
        except NativeError as error:
            _log.error("the core did not end epoch %d cleanly: %s", self.number, error)
