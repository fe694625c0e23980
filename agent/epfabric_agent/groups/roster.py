"""The ranks of an epoch and the nodes that they are on; for membership.

A group of thousands is told of after each rank that comes: what did not change is kept.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping

from epfabric_agent.groups.ranges import format_ranges
from epfabric_agent.groups.state import Entrant, NodePart


class Roster(Mapping[int, Entrant]):
    """Entrants by rank, in the order in which they came."""

    def __init__(self) -> None:
        self._entrants: dict[int, Entrant] = {}
        self._ranks: dict[str, list[int]] = {}  # of each node, ascending
        self._parts: dict[str, NodePart] = {}  # as told last; not of nodes that changed since
        self._order: list[str] | None = None

    def __getitem__(self, rank: int) -> Entrant:
        return self._entrants[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._entrants)

    def __len__(self) -> int:
        return len(self._entrants)

    def add(self, entrant: Entrant) -> None:
        """A rank that is not there yet."""
        ranks = self._ranks.setdefault(entrant.node, [])
        insort(ranks, entrant.rank)
        self._entrants[entrant.rank] = entrant
        self._changed(entrant.node, ranks[0] == entrant.rank)

    def remove(self, rank: int) -> None:
        node = self._entrants.pop(rank).node
        ranks = self._ranks[node]
        was_first = ranks[0] == rank
        ranks.remove(rank)
        if not ranks:
            del self._ranks[node]
        self._changed(node, was_first)

    def ranks_of(self, node: str) -> tuple[int, ...]:
        """Ascending."""
        return tuple(self._ranks.get(node, ()))

    def nodes(self) -> list[str]:
        """By their lowest rank."""
        if self._order is None:
            self._order = sorted(self._ranks, key=lambda node: self._ranks[node][0])
        return list(self._order)

    def parts(self, endpoints: Mapping[str, str]) -> tuple[NodePart, ...]:
        """The nodes with their ranks as ranges; the endpoint is empty where none is given."""
        return tuple(self._part(node, endpoints.get(node, "")) for node in self.nodes())

    def _part(self, node: str, endpoint: str) -> NodePart:
        known = self._parts.get(node)
        if known is None or known.endpoint != endpoint:
            known = NodePart(node, endpoint, format_ranges(self._ranks[node]))
            self._parts[node] = known
        return known

    def _changed(self, node: str, lowest: bool) -> None:
        self._parts.pop(node, None)
        if lowest:
            self._order = None
