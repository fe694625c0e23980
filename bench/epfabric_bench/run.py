"""What a bench is, and what it gets to run with; benches are in benches/, __main__.py runs them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from . import native
from .series import Limit, Line

PAIRS = 9


@dataclass(frozen=True)
class Run:
    """One run of a bench. `small` is for the tests: short, two rounds, the data still verified."""

    small: bool

    @property
    def rounds(self) -> int:
        """Pairs of A and B; fewer than nine give no interval worth its name."""
        return 2 if self.small else PAIRS

    def scaled(self, full: int, small: int) -> int:
        return small if self.small else full

    def say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    def native(self, program: str, seconds: float = 300.0, **options: int) -> list[Line]:
        """Lines of bench/native/<program>.cc, run with name=value for rounds and each option.

        A small run has 90 s at most: less than its test, so that no program outlives that.
        """
        bound = min(seconds, 90.0) if self.small else seconds
        return native.run(program, {"rounds": self.rounds, **options}, bound, self.say)


@dataclass(frozen=True)
class Bench:
    """`measure` returns raw samples; `limits` are what the results have to reach.

    `missing` says what this machine lacks for it, or nothing.
    """

    name: str
    about: str
    measure: Callable[[Run], list[Line]]
    limits: tuple[Limit, ...] = ()
    missing: Callable[[], str | None] = lambda: None
