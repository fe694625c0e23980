"""What a proxy without work takes of its core, and how late it is when work comes."""

from __future__ import annotations

from ..run import Bench, Run
from ..series import Limit, Line


def measure(run: Run) -> list[Line]:
    return run.native(
        "idle",
        # Nine rounds in less than 100 s: most of it are these looks, at two states of two sides.
        ms=run.scaled(full=500, small=100),
        shares=run.scaled(full=2, small=1),
        asleep=run.scaled(full=100, small=5),  # wakes
        blocked=run.scaled(full=8, small=1),  # a second of quiet each four
    )


BENCH = Bench(
    "idle",
    "an idle proxy's share of its core, and a push to its command retired: asleep, and blocked",
    measure,
    limits=(
        Limit("core_share_asleep", bound=None, goal=0.04),
        Limit("core_share_blocked", bound=None, goal=0.005),
    ),
)
