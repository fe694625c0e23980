"""Two modelled NICs of different speed as one, and channels beside one with a slow destination."""

from __future__ import annotations

from ..run import Bench, Run
from ..series import Line


def measure(run: Run) -> list[Line]:
    return run.native("stripes", writes=run.scaled(full=200, small=20))


BENCH = Bench(
    "stripes",
    "writes over two modelled NICs of different speed, and channels beside a slow one",
    measure,
)
