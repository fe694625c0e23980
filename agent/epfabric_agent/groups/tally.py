"""Counts what happens to groups as such: epochs, requests that were refused.

Epochs count at their coordinator; one that is lost counts nothing, so the others count that.

Told by the hub and by conversations on the agent's loop; read by sampling from any thread.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from epfabric_agent.groups.state import GroupState, Phase

KEPT_S = 300.0  # as long as telemetry shows a group after its end
_RESULTS: dict[Phase, str] = {"Ready": "opened", "Completed": "completed", "Failed": "failed"}


@dataclass
class GroupCounts:
    """Of one group since it was first told of; `handle` is never used twice."""

    handle: int
    told_s: float = 0.0
    last: tuple[int, Phase] | None = None
    epochs: Counter[str] = field(default_factory=Counter)
    """By result: opened, completed, failed; all three are there once the group is coordinated.
    Orphaned: they ended here with the agent that coordinated them."""
    refusals: Counter[str] = field(default_factory=Counter)
    """By code of the session protocol."""


class Tally:
    """By group key; groups of which nothing was told for KEPT_S are forgotten."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._handles = itertools.count(1)
        self._groups: dict[str, GroupCounts] = {}

    def epoch(self, group: str, state: GroupState) -> None:
        """`state` is what the coordinator says; it may say the same more than once."""
        counts = self._of(group)
        for result in _RESULTS.values():
            counts.epochs[result] += 0
        now = (state.epoch, state.phase)
        if now != counts.last and state.phase in _RESULTS:
            counts.epochs[_RESULTS[state.phase]] += 1
        counts.last = now

    def orphaned(self, group: str) -> None:
        """An epoch's coordinator was lost, on another node."""
        self._of(group).epochs["orphaned"] += 1

    def refused(self, group: str, code: str) -> None:
        self._of(group).refusals[code] += 1

    def counts(self) -> dict[str, GroupCounts]:
        """What is known now; not to be changed."""
        return dict(self._groups)

    def _of(self, group: str) -> GroupCounts:
        now_s = self._clock_s()
        for key, counts in list(self._groups.items()):
            if key != group and now_s - counts.told_s > KEPT_S:
                del self._groups[key]
        if group not in self._groups:
            self._groups[group] = GroupCounts(next(self._handles))
        self._groups[group].told_s = now_s
        return self._groups[group]
