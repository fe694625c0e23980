"""What a proxy without work takes of its core, and how late it is when work comes."""

from __future__ import annotations

from ..run import Bench, Run
from ..series import Limit, Line


def measure(run: Run) -> list[Line]:
    return run.native(
        "idle",
        ms=run.scaled(full=1000, small=100),  # one look at the core's time
        shares=run.scaled(full=3, small=1),
        asleep=run.scaled(full=200, small=5),  # wakes
        blocked=run.scaled(full=10, small=1),  # a second of quiet each
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
