"""Neighbouring writes as one message, on a modelled link with a price for each message."""

from __future__ import annotations

from ..run import Bench, Run
from ..series import Line


def measure(run: Run) -> list[Line]:
    return run.native(
        "joining", loads=run.scaled(full=3, small=1), prices=run.scaled(full=3, small=1)
    )


BENCH = Bench(
    "joining",
    "a dispatch's time and messages with neighbouring writes joined, packed, their signals fused",
    measure,
)
