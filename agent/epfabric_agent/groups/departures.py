"""How ranks go from a running epoch, in order or lost: in rounds; for membership.

A rank may go when no node writes to it any more; barriers give up a lost one when every node shows
that it is masked. One round is under way at a time; what is asked meanwhile goes together in the
next one, lost ranks first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass
class Round:
    """Ranks that leave, or (`masks`) are lost, and the nodes whose answer that still needs."""

    masks: bool
    ranks: list[int]
    nodes: list[str]
    waits_for: set[str]


class Departures:
    def __init__(self, node_of: Mapping[int, str] | None = None) -> None:
        """`node_of`: the node of each rank; rank 0's coordinates, and keeps its part for others."""
        self._node_of = dict(node_of or {})
        self.left: set[int] = set()
        self.masked: set[int] = set()
        self.round: Round | None = None
        self._leave: set[int] = set()
        self._mask: set[int] = set()

    @property
    def gone(self) -> set[int]:
        return self.left | self.masked

    @property
    def losing(self) -> set[int]:
        """Masked, or about to be."""
        now = self.round.ranks if self.round is not None and self.round.masks else []
        return self.masked | self._mask | set(now)

    @property
    def survivors(self) -> set[int]:
        return set(self._node_of) - self.left - self.losing

    @property
    def over(self) -> bool:
        return len(self.gone) == len(self._node_of)

    def open_nodes(self) -> set[str]:
        """Nodes that have a part in the epoch still."""
        gone = self.gone
        nodes = {node for rank, node in self._node_of.items() if rank not in gone}
        return nodes | self.kept_nodes()

    def kept_nodes(self) -> set[str]:
        """The coordinator's, where a masked rank's part in the barrier may have to go on."""
        keeper = self._node_of.get(0, "")
        return {keeper} if any(self._node_of[rank] == keeper for rank in self.losing) else set()

    def ask(self, rank: int) -> bool:
        """A rank wants to leave; False if that is known."""
        leaving = self.round is not None and not self.round.masks and rank in self.round.ranks
        if leaving or rank in self.left | self.losing | self._leave:
            return False
        self._leave.add(rank)
        return True

    def lose(self, ranks: Iterable[int]) -> list[int]:
        """Ranks are lost, perhaps while they leave; those of them that were not known to be."""
        known = self.left | self.losing
        news = [rank for rank in dict.fromkeys(ranks) if rank not in known]
        for rank in news:
            self._leave.discard(rank)
            if self.round is not None and not self.round.masks and rank in self.round.ranks:
                self.round.ranks.remove(rank)
            self._mask.add(rank)
        return news

    def begin(self, attached: Iterable[str]) -> Round | None:
        """Starts the next round if none is under way."""
        if self.round is not None or not (self._mask or self._leave):
            return None
        if self._mask:
            nodes = self.open_nodes()
            ranks, self._mask = sorted(self._mask), set()
            masks = True
        else:
            ranks, self._leave = sorted(self._leave), set()
            masks = False
            away = self.gone | set(ranks)
            nodes = {node for rank, node in self._node_of.items() if rank not in away}
        nodes &= set(attached)
        self.round = Round(masks, ranks, sorted(nodes), nodes)
        return self.round

    def answered(self, node: str) -> None:
        if self.round is not None:
            self.round.waits_for.discard(node)

    def forget_node(self, node: str) -> None:
        """The node will never answer."""
        self.answered(node)
        if self.round is not None and node in self.round.nodes:
            self.round.nodes.remove(node)

    def finish(self) -> Round | None:
        """Ends the round if nobody is waited for."""
        done = self.round
        if done is None or done.waits_for:
            return None
        self.round = None
        (self.masked if done.masks else self.left).update(done.ranks)
        return done
