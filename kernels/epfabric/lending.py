"""What a session lends to its GPU's kernels: rings, signal words; for Session and cuda.through.

A ring has one producing side. The first ring stays with the process, which enters barriers there;
the others are its kernels' from the first loan on, to one borrower at a time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from epfabric.errors import SessionError

FIRST_RING = 1


@dataclass(frozen=True)
class Loan:
    """heads: by ring, the ticket of its next command. first_signal: of the words."""

    heads: list[int]
    first_signal: int


class Lending:
    def __init__(self, rings: int, signals: int) -> None:
        self._heads = [0] * rings
        self._signals = signals  # those below have not been lent
        self._begun = self._out = self._lost = False

    def take(self, words: int, used: Collection[int]) -> Loan:
        """words: signal words that nobody had before, the highest first, so that ranks that borrow
        alike get the same. used: rings that the process has pushed to."""
        if self._lost:
            raise SessionError(
                "a ring of this session is lost: its agent took nothing in time. Make a new session"
            )
        if self._out:
            raise SessionError(
                "the rings of this session are another buffer's: destroy that one before"
            )
        if len(self._heads) <= FIRST_RING:
            raise SessionError("kernels need a ring beside the first: raise the fabric's rings")
        if not self._begun and any(ring >= FIRST_RING for ring in used):
            raise SessionError(
                f"rings {sorted(used)} were used by this process: kernels need all but the first"
            )
        if self._signals < words:
            raise SessionError(
                f"{words} signal words are needed and {self._signals} are left: raise fifo.signals "
                "of the fabric, or make fewer buffers of a session"
            )
        self._begun = self._out = True
        self._signals -= words
        return Loan(list(self._heads), self._signals)

    def back(self, heads: list[int], *, lost: bool = False) -> None:
        """heads: where the kernels have come to. lost: they gave a ring up, whose next slots nobody
        will write."""
        self._heads, self._out, self._lost = heads, False, lost

    def check(self, ring: int) -> None:
        """Raises SessionError where the process may not push to it."""
        if self._begun and ring >= FIRST_RING:
            raise SessionError(f"ring {ring} of this session is its kernels'")
