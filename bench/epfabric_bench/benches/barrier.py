"""Barriers: of one node in one thread and through eight processes, and of two agents over tcp."""

from __future__ import annotations

from ..run import Bench, Run
from ..series import Limit, Line

LOCAL, REMOTE = 0, 1  # paths.cc's `what`


def measure(run: Run) -> list[Line]:
    trips = run.scaled(full=2_000, small=50)
    return [
        *run.native("barrier", barriers=run.scaled(full=10_000, small=200)),
        *run.native("paths", what=LOCAL, trips=trips),
        *run.native("paths", what=REMOTE, trips=trips),
    ]


BENCH = Bench(
    "barrier",
    "8 ranks of one node, in one thread and in 8 processes; 2 agents over tcp;ofi_rxm",
    measure,
    limits=(Limit("local_barrier_seconds", bound=1e-6, goal=300e-9),),
)
