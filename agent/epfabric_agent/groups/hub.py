"""All groups of this node: its parts, and the coordinators of groups whose rank 0 is here.

Used by session (a pod says hello), by the peer server (which coordinators are here), by the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from dataclasses import fields
from typing import Protocol

from epfabric_agent.groups.bounds import UID_BYTES
from epfabric_agent.groups.context import NodeContext, PartContext
from epfabric_agent.groups.coordinator import Coordinator
from epfabric_agent.groups.local_rank import LocalRank
from epfabric_agent.groups.membership import Membership
from epfabric_agent.groups.part import Part
from epfabric_agent.groups.state import GroupState, Limits
from epfabric_agent.groups.tally import Tally
from epfabric_agent.pods import Pod

EPOCH_S = 5.0
ENDED_S = 10.0
_log = logging.getLogger(__name__)


class Reporter(Protocol):
    """Tells the outside of groups that are coordinated here."""

    async def last_epoch(self, pod: Pod) -> int:
        """The latest epoch that is known of the pod's group; 0 for none. Bounded."""

    def state(self, pod: Pod, state: GroupState) -> None:
        """Never blocks. `pod` is that of rank 0."""

    def epoch_ended(self, group: str, epoch: int, handle: int) -> None:
        """The core's counts of that epoch are final, and may be forgotten soon."""

    def refused(self, pod: Pod, code: str, message: str) -> None:
        """A request of the pod. Never blocks."""


class NoReporter:
    """For a manifest: nobody is told; epochs are known to the agents alone."""

    async def last_epoch(self, pod: Pod) -> int:
        return 0

    def state(self, pod: Pod, state: GroupState) -> None: ...

    def epoch_ended(self, group: str, epoch: int, handle: int) -> None: ...

    def refused(self, pod: Pod, code: str, message: str) -> None: ...


class Hub:
    def __init__(self, reporter: Reporter, epoch_s: float = EPOCH_S) -> None:
        """`epoch_s`: how long a hello waits for what the reporter knows of its group."""
        self.tally = Tally()
        self._reporter = reporter
        self._epoch_s = epoch_s
        self._parts: dict[str, Part] = {}
        self._coordinators: dict[str, Coordinator] = {}
        self._handles = itertools.count(1)
        self._epochs: dict[str, int] = {}
        self._asking: dict[str, asyncio.Task[int]] = {}
        self._context: PartContext | None = None

    def refused(self, pod: Pod, code: str, message: str) -> None:
        """A request of the pod was: it is counted and told."""
        self.tally.refused(pod.group_key, code)
        self._reporter.refused(pod, code, message)

    def use(self, context: NodeContext) -> None:
        """From now on parts are made with this context; those that exist keep theirs."""
        loop = asyncio.get_running_loop()

        def changed() -> None:
            loop.call_soon(self.retire)
            context.changed()

        values = {f.name: getattr(context, f.name) for f in fields(NodeContext)}
        values["changed"] = changed
        self._context = PartContext(
            **values,
            coordinator=self.coordinator,
            next_handle=self._handles.__next__,
            orphaned=self.tally.orphaned,
            epoch_ended=self._reporter.epoch_ended,
        )

    @property
    def parts(self) -> dict[str, Part]:
        return self._parts

    def ranks(self) -> list[LocalRank]:
        return [local for part in self._parts.values() for local in part.ranks.values()]

    def living(self) -> tuple[str, ...]:
        """Groups that end if this agent does: with ranks here, or coordinated here. Sorted."""
        here = {group for group, part in self._parts.items() if part.in_use}
        led = {group for group, found in self._coordinators.items() if not found.may_go}
        return tuple(sorted(here | led))

    def coordinator(self, group: str) -> Coordinator | None:
        return self._coordinators.get(group)

    async def last_epoch(self, pod: Pod) -> int:
        """What the outside knows of the group, for part_for() of rank 0; asked once at a time.

        Bounded: an epoch's number only tells it from earlier ones, and 0 is good enough.
        """
        group = pod.group_key
        if group in self._coordinators:
            return 0
        asking = self._asking.get(group)
        if asking is None:
            asking = self._asking[group] = asyncio.create_task(self._reporter.last_epoch(pod))
            asking.add_done_callback(lambda _: self._asking.pop(group, None))
        try:
            return await asyncio.wait_for(asyncio.shield(asking), self._epoch_s)
        except TimeoutError:
            _log.warning("the last epoch of group %s is not known in %g s", group, self._epoch_s)
            return 0

    async def ended(self, pod: Pod, rank: int) -> None:
        """Waits, with a bound, for the earlier session of this rank if that is ending."""
        part = self._parts.get(pod.group_key)
        holder = part.ranks.get(rank) if part is not None else None
        if holder is not None and holder.ending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(holder.ended.wait(), ENDED_S)

    def part_for(self, pod: Pod, rank: int, last_epoch: int) -> Part:
        """The part of the pod's group; its coordinator is made where rank 0 says hello."""
        assert self._context is not None, "there are no services without use()"
        group = pod.group_key
        if rank == 0 and group not in self._coordinators:
            known = max(last_epoch, self._epochs.get(group, 0))
            limits = Limits(
                join_s=self._context.join_timeout_s,
                mask=self._context.mask,
                dissemination=self._context.dissemination,
            )
            membership = Membership(group, known, limits, secrets.token_bytes(UID_BYTES))
            self._coordinators[group] = Coordinator(
                membership,
                lambda state: self._tell(pod, state),
                self.retire,
            )
        part = self._parts.get(group)
        if part is None or not part.in_use:
            part = self._parts[group] = Part(group, self._context)
        part.renew(self._context)
        return part

    def _tell(self, pod: Pod, state: GroupState) -> None:
        self.tally.epoch(pod.group_key, state)
        self._reporter.state(pod, state)

    def retire(self) -> None:
        """Ends coordinators whose rank 0 is gone while no epoch runs; drops idle parts."""
        for group, coordinator in list(self._coordinators.items()):
            part = self._parts.get(group)
            if coordinator.may_go and (part is None or 0 not in part.ranks):
                self._end(group, coordinator)
        for group, part in list(self._parts.items()):
            if not part.in_use:
                del self._parts[group]

    async def close(self, why: str) -> None:
        parts = list(self._parts.values())
        await asyncio.gather(*(part.close(why) for part in parts))
        for group, coordinator in list(self._coordinators.items()):
            self._end(group, coordinator)

    def _end(self, group: str, coordinator: Coordinator) -> None:
        self._epochs[group] = coordinator.epoch
        del self._coordinators[group]
        coordinator.dissolve()
