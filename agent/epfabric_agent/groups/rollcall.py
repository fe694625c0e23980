"""Who is missing at a barrier that takes too long: every node is asked; for membership."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_FRUITLESS = 3


@dataclass
class RollCall:
    """One question to the nodes of `waits_for`."""

    barrier: int
    reason: str
    waits_for: set[str]
    deadline: float
    absent: set[int] = field(default_factory=set)


class RollCalls:
    """At most one at a time."""

    def __init__(self) -> None:
        self.now: RollCall | None = None
        self._fruitless: dict[int, int] = {}

    def begin(self, barrier: int, reason: str, nodes: Iterable[str], deadline: float) -> bool:
        """False while another one is under way."""
        if self.now is not None:
            return False
        self.now = RollCall(barrier, reason, set(nodes), deadline)
        return True

    def answer(self, node: str, barrier: int, absent: Iterable[int]) -> None:
        if self.now is not None and barrier == self.now.barrier and node in self.now.waits_for:
            self.now.waits_for.discard(node)
            self.now.absent.update(absent)

    def forget_node(self, node: str) -> None:
        if self.now is not None:
            self.now.waits_for.discard(node)

    def finish(self) -> RollCall | None:
        """The one that all nodes have answered."""
        done = self.now
        if done is None or done.waits_for:
            return None
        self.now = None
        return done

    def in_vain(self, call: RollCall) -> bool:
        """Nobody was absent. True when that has been so too often for this barrier: messages may
        cross with what ends it, but not again and again."""
        count = self._fruitless.get(call.barrier, 0) + 1
        self._fruitless = {call.barrier: count}
        return count >= MOST_FRUITLESS
