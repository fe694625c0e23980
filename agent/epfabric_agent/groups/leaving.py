"""How ranks leave a running epoch: in rounds, so that many leave with few messages; for membership.

A rank may go when no node writes to it any more. All ranks that ask while a round is under way go
together in the next one.
"""

from __future__ import annotations

from collections.abc import Mapping


class LeaveRounds:
    """Which ranks have left, which are leaving, and whose answer that still needs."""

    def __init__(self) -> None:
        self.left: set[int] = set()
        self.round: list[int] = []
        self.waits_for: set[str] = set()
        self._asked: set[int] = set()

    def ask(self, rank: int) -> bool:
        """A rank wants to leave; False if that is known."""
        if rank in self.left or rank in self._asked or rank in self.round:
            return False
        self._asked.add(rank)
        return True

    def begin(self, node_of: Mapping[int, str]) -> list[int]:
        """Starts the next round if none is under way; its ranks."""
        if self.round or not self._asked:
            return []
        self.round, self._asked = sorted(self._asked), set()
        self.waits_for = {
            node for rank, node in node_of.items() if rank not in self.left | set(self.round)
        }
        return self.round

    def forget_node(self, node: str) -> None:
        """The node answered, or will never have to."""
        self.waits_for.discard(node)

    def finish(self) -> list[int]:
        """Ends the round if nobody is waited for; the ranks that have left by it."""
        if not self.round or self.waits_for:
            return []
        gone, self.round = self.round, []
        self.left.update(gone)
        return gone
