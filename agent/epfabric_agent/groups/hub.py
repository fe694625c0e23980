"""All groups of this node: its parts, and the coordinators of groups whose rank 0 is here.

Used by session (a pod says hello), by the peer server (which coordinators are here), by the agent.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import fields
from typing import Protocol

from epfabric_agent.groups.context import NodeContext, PartContext
from epfabric_agent.groups.coordinator import Coordinator
from epfabric_agent.groups.membership import Membership
from epfabric_agent.groups.part import Part
from epfabric_agent.groups.state import GroupState, Limits
from epfabric_agent.pods import Pod


class Reporter(Protocol):
    """Tells the outside of groups that are coordinated here."""

    async def last_epoch(self, pod: Pod) -> int:
        """The latest epoch that is known of the pod's group; 0 for none. Bounded."""

    def state(self, pod: Pod, state: GroupState) -> None:
        """Never blocks. `pod` is that of rank 0."""

    def epoch_ended(self, group: str, epoch: int, handle: int) -> None:
        """The core's counts of that epoch are final, and may be forgotten soon."""


class NoReporter:
    """For a manifest: nobody is told; epochs are known to the agents alone."""

    async def last_epoch(self, pod: Pod) -> int:
        return 0

    def state(self, pod: Pod, state: GroupState) -> None: ...

    def epoch_ended(self, group: str, epoch: int, handle: int) -> None: ...


class Hub:
    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._parts: dict[str, Part] = {}
        self._coordinators: dict[str, Coordinator] = {}
        self._handles = itertools.count(1)
        self._epochs: dict[str, int] = {}
        self._opening = asyncio.Lock()
        self._context: PartContext | None = None

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
            epoch_ended=self._reporter.epoch_ended,
        )

    @property
    def parts(self) -> dict[str, Part]:
        return self._parts

    def coordinator(self, group: str) -> Coordinator | None:
        return self._coordinators.get(group)

    async def part_for(self, pod: Pod, rank: int) -> Part:
        """The part of the pod's group; its coordinator is made where rank 0 says hello."""
        if self._context is None:
            raise RuntimeError("the agent is not ready for sessions")
        if rank == 0:
            await self._coordinate(pod)
        part = self._parts.get(pod.group_key)
        if part is None or not part.in_use:
            part = self._parts[pod.group_key] = Part(pod.group_key, self._context)
        return part

    async def _coordinate(self, pod: Pod) -> None:
        group = pod.group_key
        async with self._opening:
            if group in self._coordinators:
                return
            assert self._context is not None
            known = await self._reporter.last_epoch(pod)
            limits = Limits(join_s=self._context.join_timeout_s)
            membership = Membership(group, max(known, self._epochs.get(group, 0)), limits)
            self._coordinators[group] = Coordinator(
                membership,
                lambda state: self._reporter.state(pod, state),
                self.retire,
            )

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
