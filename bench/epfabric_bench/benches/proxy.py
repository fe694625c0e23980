"""What one proxy thread can do, from visible slots through the checks to a null transport."""

from __future__ import annotations

from ..run import Bench, Run
from ..series import Limit, Line


def measure(run: Run) -> list[Line]:
    return run.native("proxy", fills=run.scaled(full=50, small=2))


BENCH = Bench(
    "proxy",
    "commands, 1 % of them bad, through a proxy's loop to a transport that moves nothing",
    measure,
    limits=(Limit("commands_per_second_per_thread", bound=10e6, goal=20e6),),
)
