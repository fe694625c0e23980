"""CPU sets and which CPUs proxies get: pure decisions, for the agent's sessions and status."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from epfabric_agent.groups.ranges import format_ranges, parse_ranges

UNPINNED = -1


@dataclass(frozen=True)
class Cpus:
    """CPUs that the agent may use, and the NUMA node of each CPU of the machine."""

    usable: tuple[int, ...]
    numa_of: Mapping[int, int]

    def text(self) -> str:
        return format_ranges(self.usable)


def parse_cpus(text: str) -> tuple[int, ...]:
    """The CPUs of a kernel's list such as 0-3,8; empty of nothing or of nonsense."""
    try:
        return parse_ranges(text)
    except ValueError:
        return ()


@dataclass(frozen=True)
class Placement:
    """CPUs of a session's proxies, one each; UNPINNED where there was none to own."""

    cpus: tuple[int, ...]
    constrained: bool
    """Fewer proxies than wanted, or one without a CPU of its own."""
    local: bool
    """All are on the wanted NUMA node."""


def place(
    wanted: int, cpus: Cpus, taken: Collection[int], numa: int | None, strict: bool
) -> Placement:
    """CPUs for `wanted` proxies: each its own, the wanted NUMA node first, then the nearest.

    With too few CPUs there are fewer proxies, and at least one, which then shares. `strict` takes
    none of another NUMA node. `numa`: the session's GPU's node; None where any will do.
    """
    free = [cpu for cpu in cpus.usable if cpu not in taken]

    def distance(cpu: int) -> tuple[int, int]:
        there = cpus.numa_of.get(cpu, 0)
        return (0 if numa is None else abs(there - numa), cpu)

    ordered = sorted(free, key=distance)
    if strict and numa is not None:
        ordered = [cpu for cpu in ordered if cpus.numa_of.get(cpu, 0) == numa]
    chosen = tuple(ordered[:wanted])
    if not chosen:
        return Placement((UNPINNED,), constrained=True, local=numa is None)
    local = numa is None or all(cpus.numa_of.get(cpu, 0) == numa for cpu in chosen)
    return Placement(chosen, constrained=len(chosen) < wanted, local=local)


class CpuLedger:
    """Which session's proxies own which CPUs."""

    def __init__(self) -> None:
        self._placements: dict[int, Placement] = {}

    def take(
        self, session: int, wanted: int, cpus: Cpus, numa: int | None, strict: bool
    ) -> Placement:
        placement = place(wanted, cpus, self.taken(), numa, strict)
        self._placements[session] = placement
        return placement

    def keep_first(self, session: int) -> None:
        """Gives back the CPUs of all the session's proxies but the first, which runs on."""
        placement = self._placements[session]
        self._placements[session] = replace(placement, cpus=placement.cpus[:1])

    def give_back(self, session: int) -> None:
        self._placements.pop(session, None)

    def taken(self) -> frozenset[int]:
        return frozenset(
            cpu for p in self._placements.values() for cpu in p.cpus if cpu != UNPINNED
        )

    @property
    def constrained(self) -> bool:
        return any(p.constrained for p in self._placements.values())

    @property
    def local(self) -> bool:
        return all(p.local for p in self._placements.values())


def usable(sets: Iterable[Collection[int]]) -> tuple[int, ...]:
    """CPUs in all of these sets that say anything at all."""
    found: set[int] | None = None
    for cpus in sets:
        if cpus:
            found = set(cpus) if found is None else found & set(cpus)
    return tuple(sorted(found or ()))
