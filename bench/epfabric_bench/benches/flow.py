"""Caps on what is under way, fixed and adaptive, on a modelled link whose queue has an end."""

from __future__ import annotations

from ..run import Bench, Run
from ..series import Line


def measure(run: Run) -> list[Line]:
    return run.native("flow", writes=run.scaled(full=4000, small=400))


BENCH = Bench(
    "flow",
    "a write's time under fixed and adaptive caps, on a modelled link with a bounded queue",
    measure,
)
