"""What a bench is, and what it gets to run with; benches are in benches/, __main__.py runs them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from . import native
from .series import Limit, Line

PAIRS = 9
SMALL_S = 200.0  # less than the bound of its test


@dataclass(frozen=True)
class Run:
    """One run of a bench. `small` is for the tests: short, two rounds, the data still verified.

    All programs that a small run starts have SMALL_S together: none outlives its test.
    """

    small: bool
    sizes: Mapping[str, int] = field(default_factory=dict)  # as given; see sized()
    began: float = field(default_factory=time.monotonic)

    @property
    def rounds(self) -> int:
        """Pairs of A and B; fewer than nine give no interval worth its name."""
        return 2 if self.small else PAIRS

    def scaled(self, full: int, small: int) -> int:
        return small if self.small else full

    def sized(self, what: str, full: int, small: int) -> int:
        """What the command line gave for it, else full or small."""
        return self.sizes.get(what, self.scaled(full, small))

    def say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    def seconds(self, full: float) -> float:
        """How long the next program may take: `full`, or what is left of a small run."""
        if not self.small:
            return full
        return min(full, max(1.0, self.began + SMALL_S - time.monotonic()))

    def native(self, program: str, seconds: float = 300.0, **options: int) -> list[Line]:
        """Lines of bench/native/<program>.cc, run with name=value for rounds and each option."""
        options = {"rounds": self.rounds, **options}
        return native.run(program, options, self.seconds(seconds), self.say)


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
    native: bool = True  # it needs the programs of bench/native
    named: bool = False  # it takes long: run only where it is asked for by name
