"""CPU sets and which CPUs proxies get: pure decisions, for the agent's sessions and status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from epfabric_agent.groups.ranges import format_ranges, parse_ranges

UNPINNED = -1


@dataclass(frozen=True)
class Cpus:
    """CPUs that the agent may use, and the NUMA node of each CPU of the machine."""

    usable: tuple[int, ...]
    numa_of: Mapping[int, int]
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Between two NUMA nodes, as the firmware has it; empty where it does not say."""

    def text(self) -> str:
        return format_ranges(self.usable)

    def home(self, cpu: int) -> int:
        return self.numa_of.get(cpu, 0)

    def distance(self, cpu: int, numa: int | None) -> int:
        """Least on the NUMA node itself; the same for all where `numa` is None."""
        if numa is None:
            return 0
        home = self.home(cpu)
        return self.distances.get((numa, home), abs(numa - home))


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
    numa: int | None
    """The wanted NUMA node: where the session's memory is. None: any will do."""
    strict: bool
    short: bool
    """There are fewer proxies than wanted."""
    local: bool
    """All are on the wanted NUMA node."""

    @property
    def constrained(self) -> bool:
        """Fewer proxies than wanted, or one without a CPU of its own."""
        return self.short or UNPINNED in self.cpus


def place(
    wanted: int, cpus: Cpus, taken: Collection[int], numa: int | None, strict: bool
) -> Placement:
    """CPUs for `wanted` proxies: each its own, the wanted NUMA node first, then the nearest.

    With too few CPUs there are fewer proxies, and at least one, which then shares. `strict` takes
    none of another NUMA node.
    """
    free = [cpu for cpu in cpus.usable if cpu not in taken and _fits(cpu, cpus, numa, strict)]
    free.sort(key=lambda cpu: (cpus.distance(cpu, numa), cpu))
    chosen = tuple(free[:wanted])
    return Placement(
        chosen or (UNPINNED,),
        numa,
        strict,
        short=len(chosen or (UNPINNED,)) < wanted,
        local=_local(chosen or (UNPINNED,), cpus, numa),
    )


def follow(placement: Placement, cpus: Cpus, free: set[int]) -> Placement:
    """The placement as these CPUs allow it; `free`, which no other session holds, is kept so.

    A proxy keeps its CPU unless that may not be used any more or a nearer one is free. There are
    not fewer proxies than before: one that finds no CPU is UNPINNED until there is one again.
    """
    numa, strict = placement.numa, placement.strict
    chosen = []
    for own in placement.cpus:
        candidates = {cpu for cpu in free if _fits(cpu, cpus, numa, strict)}
        if own in cpus.usable:
            candidates.add(own)
            free.add(own)
        ranked = ((cpus.distance(cpu, numa), cpu != own, cpu) for cpu in candidates)
        _, _, best = min(ranked, default=(0, False, UNPINNED))
        free.discard(best)
        chosen.append(best)
    found = tuple(chosen)
    return replace(placement, cpus=found, local=_local(found, cpus, numa))


def roomiest(cpus: Cpus, taken: Collection[int]) -> int | None:
    """The NUMA node with the most CPUs that are free, or may be used at all where none is."""
    free = Counter(cpus.home(cpu) for cpu in cpus.usable if cpu not in taken)
    room = free or Counter(map(cpus.home, cpus.usable))
    return min(room, key=lambda node: (-room[node], node), default=None)


def _fits(cpu: int, cpus: Cpus, numa: int | None, strict: bool) -> bool:
    return not strict or numa is None or cpus.home(cpu) == numa


def _local(chosen: tuple[int, ...], cpus: Cpus, numa: int | None) -> bool:
    used = cpus.usable if UNPINNED in chosen else chosen
    return numa is None or all(cpus.home(cpu) == numa for cpu in used)


class CpuLedger:
    """Which session's proxies own which CPUs."""

    def __init__(self) -> None:
        self._placements: dict[int, Placement] = {}

    def take(
        self, session: int, wanted: int, cpus: Cpus, numa: int | None, strict: bool
    ) -> Placement:
        """`numa`: the node that the session is to be on; None: the one with the most room."""
        taken = self.taken()
        home = roomiest(cpus, taken) if numa is None else numa
        placement = place(wanted, cpus, taken, home, strict)
        self._placements[session] = placement
        return placement

    def follow(self, cpus: Cpus) -> None:
        """Fits all sessions to what may be used now."""
        free = set(cpus.usable) - self.taken()
        for session, placement in self._placements.items():
            self._placements[session] = follow(placement, cpus, free)

    def keep_first(self, session: int) -> None:
        """Gives back the CPUs of all the session's proxies but the first, which runs on."""
        placement = self._placements[session]
        self._placements[session] = replace(placement, cpus=placement.cpus[:1])

    def give_back(self, session: int) -> None:
        self._placements.pop(session, None)

    def cpus_of(self, session: int) -> tuple[int, ...]:
        placement = self._placements.get(session)
        return placement.cpus if placement else ()

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
