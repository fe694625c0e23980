"""A CPU producer against a consumer over real rings, without checks or transport."""

from __future__ import annotations

from ..run import Bench, Run
from ..series import Line


def measure(run: Run) -> list[Line]:
    return run.native(
        "fifo",
        streams=run.scaled(full=20, small=1),
        commands=run.scaled(full=200_000, small=8_000),
        trips=run.scaled(full=4_000, small=20),
    )


BENCH = Bench(
    "fifo", "commands through rings of slots, producer and consumer on two threads", measure
)
