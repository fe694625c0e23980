"""The operator with thousands of nodes and pods, and one large group, on a real API server.

It is measured by scale_operator.py, which needs what a machine with a GPU may lack.
"""

from __future__ import annotations

from ..run import Bench, Run
from ..series import Limit, Line


def measure(run: Run) -> list[Line]:
    from .. import scale_operator

    return scale_operator.measure(run)


BENCH = Bench(
    "scale",
    "5,000 nodes, 20,000 pods and a group of 4,096 ranks on an API server (half an hour)",
    measure,
    limits=(
        Limit("resync", bound=None, goal=10.0),
        Limit("peak", bound=250.0, goal=250.0),
        Limit("object", bound=256 * 1024, goal=256 * 1024),
    ),
    native=False,
    named=True,
)
