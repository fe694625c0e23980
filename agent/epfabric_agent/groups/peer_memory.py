"""GPU memory that ranks of one node reach among themselves: what each offers, who may have it.

Used by session.sharing, which talks to pods, and by groups.part_epoch, which lets ranks try it
before their group is ready. The agent passes descriptors on; it never maps what they stand for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epfabric.messages import NvlinkKind
from epfabric_crds.node import PeerMemory

from epfabric_agent.groups.ranges import format_ranges, spoken
from epfabric_agent.groups.state import MAX_REASON

if TYPE_CHECKING:
    from epfabric_agent.groups.local_rank import LocalRank
    from epfabric_agent.groups.part import Part

TRIAL = "trial"
"""The name under which the library offers memory that is to be tried at join."""
TRIAL_S = 10.0


@dataclass(frozen=True)
class Offered:
    """`fd` is the agent's own, closed by the session that it came with."""

    fd: int
    bytes: int
    note: str


@dataclass(frozen=True)
class Nvlink:
    """How a rank, or all of a group's on this node, reach each other's GPU memory, and why."""

    kind: NvlinkKind
    reason: str


class Offers:
    """Those of one rank, by name; over when the rank is: memory lives while its descriptor does."""

    def __init__(self) -> None:
        self.let_go: Callable[[list[Offered]], None] = lambda _: None
        """Closes what is offered no longer; set by the session."""
        self._offers: dict[str, Offered] = {}
        self._news = asyncio.Event()
        self.over = False

    def __contains__(self, name: str) -> bool:
        return name in self._offers

    def get(self, name: str) -> Offered | None:
        return self._offers.get(name)

    def add(self, name: str, offered: Offered) -> None:
        self._offers[name] = offered
        self._tell()

    def drop(self, name: str) -> None:
        """It is offered no longer. KeyError for what is not."""
        self.let_go([self._offers.pop(name)])

    def end(self) -> None:
        """Nothing is or will be offered (idempotent)."""
        gone, self._offers, self.over = list(self._offers.values()), {}, True
        self.let_go(gone)
        self._tell()

    async def change(self, limit_s: float) -> None:
        """Returns when something is new, at the latest after limit_s."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), limit_s)

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


async def try_among(ranks: Iterable[LocalRank], limit_s: float = TRIAL_S) -> None:
    """Asks those that offer memory for it to try each other's; bounded."""
    ready = [local for local in ranks if TRIAL in local.offers]
    if len(ready) == 1:
        ready.pop().nvlink = Nvlink("none", "no other rank of this node offers GPU memory")
    if not ready:
        return
    loop = asyncio.get_running_loop()
    numbers = [local.rank for local in ready]
    for local in ready:
        local.tried = loop.create_future()
        local.on_trial(tuple(numbers))
    await asyncio.wait([local.tried for local in ready if local.tried], timeout=limit_s)
    for local in ready:
        if local.tried is not None and not local.tried.done():
            local.nvlink = Nvlink("none", f"it did not say within {limit_s:g} s what it tried")
        local.tried = None


def verdict(ranks: Iterable[LocalRank]) -> Nvlink:
    """Of ranks of one group on this node: posix_fd only where all of them say so."""
    known = sorted(ranks, key=lambda local: local.rank)
    numbers = [local.rank for local in known]
    if len(known) < 2:
        return Nvlink("none", "no other rank of the group is on this node")
    silent = [local.rank for local in known if local.nvlink is None]
    if len(silent) == len(known):
        return Nvlink("none", "its ranks offer no GPU memory")
    for local in known:
        if local.nvlink is not None and local.nvlink.kind == "none":
            return Nvlink("none", f"rank {local.rank}: {local.nvlink.reason}")
    if silent:
        return Nvlink("none", f"no GPU memory is offered by {spoken(silent)}")
    found: dict[str, int] = {}  # what they say, by the first rank that says it
    for local in known:
        if local.nvlink is not None:
            found.setdefault(local.nvlink.reason, local.rank)
    said = (f"rank {rank}: {reason}" for reason, rank in found.items())
    return Nvlink("posix_fd", "; ".join([f"tried by ranks {format_ranges(numbers)}", *said]))


def peer_memory(parts: Iterable[Part]) -> tuple[PeerMemory, ...]:
    """For a status: that of each group whose epoch is open here, by name."""
    found = []
    for part in parts:
        if part.epoch is not None and part.epoch.ranks:
            said = verdict(part.epoch.ranks.values())
            reason = said.reason[:MAX_REASON]
            found.append(PeerMemory(group=part.group, nvlink=said.kind, reason=reason))
    return tuple(sorted(found, key=lambda one: one.group))
