"""A rank of this tier: meets the others in barriers, late in some of them, and says when it was.

Before it is late, it sees on a board that all others have come: their BARRIERs have been taken.
Prints a JSON list: for each barrier when it entered and when it was let go (CLOCK_MONOTONIC, ns).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import epfabric
import numpy as np

WAIT_S = 60.0
LOOK_S = 0.0005


def main() -> int:
    path, rank_text, world_text, board, plan_text = sys.argv[1:]
    rank, world, plan = int(rank_text), int(world_text), json.loads(plan_text)
    taken = np.memmap(board, np.uint64, "r+", shape=(world,))
    late = set(plan["late"]) if plan["straggler"] == rank else set()
    others = [other for other in range(world) if other != rank]
    times = []
    with epfabric.connect(path, rank, world, timeout_s=WAIT_S) as session:
        session.join()
        ring, beside = session.ring(0), session.ring(1)
        for number in range(plan["barriers"]):
            if number in late:
                until(lambda n=number: bool((taken[others] > n).all()))  # type: ignore[misc]
                time.sleep(plan["late_s"])
            entered_ns = time.monotonic_ns()
            ticket = ring.push_barrier()
            ring.flush()
            # After two of these the proxy has begun a turn after the BARRIER, and looked at it.
            for _ in range(2):
                beside.wait(beside.signal(rank, 0), WAIT_S)
            taken[rank] = number + 1
            ring.wait(ticket, WAIT_S)
            times.append((entered_ns, time.monotonic_ns()))
    print(json.dumps(times), flush=True)
    return 0


def until(seen: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not seen():
        if time.monotonic() > end:
            raise TimeoutError(f"not seen in {WAIT_S} s")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    sys.exit(main())
