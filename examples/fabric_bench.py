"""Measures a fabric between the ranks of one job; `kubectl epfabric bench` runs it in each pod.

Each rank measures barriers, round trips with its partner (rank 0 with 1, 2 with 3 …) and writes to
the next rank, checks what arrived, prints one line of JSON and leaves it where --result says, as
the pod's termination message. Exit status: 0 measured and right; 1 wrong bytes, or a fabric that
failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import epfabric
import numpy as np
from numpy.typing import NDArray

TRIPS_BYTES = (64, 7168)
STREAM_BYTES = 256 << 10
STREAM_AT_ONCE = 16
WARM_UP = 10
MOST_RESULT_BYTES = 4000
Result = dict[str, Any]


class Bench:
    """One rank. Its region: what it sends, then what it receives."""

    def __init__(self, session: epfabric.Session, iterations: int) -> None:
        self.session, self.iterations = session, iterations
        self.rank, self.world = session.rank, session.world_size
        self.region = session.register(2 * STREAM_BYTES)
        self.ring = session.ring(0)
        self.heard: dict[int, int] = {}

    def pattern(self, rank: int, nbytes: int, number: int) -> NDArray[np.uint8]:
        return np.random.default_rng([rank, nbytes, number]).integers(0, 256, nbytes, np.uint8)

    def send(self, to: int, nbytes: int) -> None:
        """Writes the sending half, and lets the signal at `to` grow by one."""
        at = self.region.offset
        self.ring.write(to, at, at + STREAM_BYTES, nbytes, signal=0, advance=1)
        self.ring.flush()

    def hear(self, source: int, more: int = 1) -> None:
        self.heard[source] = self.heard.get(source, 0) + more
        self.session.wait_signal(source, 0, 0, at_least=self.heard[source])

    def fill(self, nbytes: int, number: int) -> None:
        self.region.array[:nbytes] = self.pattern(self.rank, nbytes, number)

    def right(self, source: int, nbytes: int, number: int) -> bool:
        """Whether the receiving half holds what `source` sent."""
        got = self.region.array[STREAM_BYTES : STREAM_BYTES + nbytes]
        return bool(np.array_equal(got, self.pattern(source, nbytes, number)))

    def barriers(self) -> Result:
        times = self.timed(self.session.barrier)
        return latency("barrier", times, True)

    def trips(self, nbytes: int) -> Result | None:
        """There and back; None for a rank without partner."""
        partner = self.rank ^ 1
        self.fill(nbytes, 1)
        self.session.barrier()
        if partner >= self.world:
            self.session.barrier()
            return None

        def trip() -> None:
            if self.rank < partner:
                self.send(partner, nbytes)
                self.hear(partner)
            else:
                self.hear(partner)
                self.send(partner, nbytes)

        times = self.timed(trip)
        self.session.barrier()
        return latency(f"round trip {nbytes} B", times, self.right(partner, nbytes, 1))

    def stream(self) -> Result:
        """All ranks at once, each to the next one."""
        to, source = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        self.fill(STREAM_BYTES, 2)
        self.session.barrier()
        rounds = max(1, self.iterations // STREAM_AT_ONCE)
        begun = time.perf_counter()
        for _ in range(rounds):
            for _ in range(STREAM_AT_ONCE):
                self.send(to, STREAM_BYTES)
            self.ring.wait(self.ring.drain())
        took = time.perf_counter() - begun
        self.hear(source, rounds * STREAM_AT_ONCE)
        self.session.barrier()
        return {
            "case": f"stream {STREAM_BYTES >> 10} KiB",
            "metric": "throughput",
            "unit": "MB/s",
            "value": rounds * STREAM_AT_ONCE * STREAM_BYTES / took / 1e6,
            "verified": self.right(source, STREAM_BYTES, 2),
        }

    def timed(self, act: Callable[[], None]) -> NDArray[np.float64]:
        """Seconds of each, after a few that do not count."""
        times = np.zeros(self.iterations)
        for number in range(-WARM_UP, self.iterations):
            begun = time.perf_counter()
            act()
            if number >= 0:
                times[number] = time.perf_counter() - begun
        return times


def latency(case: str, times: NDArray[np.float64], verified: bool) -> Result:
    micros = times * 1e6
    p50, p99 = np.quantile(micros, 0.5), np.quantile(micros, 0.99)
    return {
        "case": case,
        "metric": "latency",
        "unit": "us",
        "value": float(p50),
        "p50": float(p50),
        "p99": float(p99),
        "verified": verified,
    }


def run(socket: str | None, rank: int | None, world: int | None, iterations: int) -> Result:
    with epfabric.connect(socket, rank, world) as session:
        bench = Bench(session, iterations)
        session.join()
        results = [bench.barriers()]
        results += [one for size in TRIPS_BYTES if (one := bench.trips(size)) is not None]
        results.append(bench.stream())
        return {
            "rank": session.rank,
            "world": session.world_size,
            "node": session.node,
            "fabric": session.fabric,
            "results": results,
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iterations", type=int, default=200, help="of each case (default 200)")
    parser.add_argument("--result", type=Path, help="file that gets the line too")
    parser.add_argument("--socket", help="the agent's socket, outside Kubernetes")
    parser.add_argument("--rank", type=int, help="default: from the job's environment")
    parser.add_argument("--world-size", type=int, help="default: from the job's environment")
    given = parser.parse_args()
    if not 1 <= given.iterations <= 1_000_000:
        parser.error("--iterations must be 1 to 1000000")
    try:
        found = run(given.socket, given.rank, given.world_size, given.iterations)
    except (epfabric.SessionError, epfabric.Timeout, OSError) as error:
        found = {"error": str(error)[:1000], "results": []}
    line = json.dumps(found)[:MOST_RESULT_BYTES]
    print(line, flush=True)
    if given.result is not None:
        given.result.write_text(line)
    right = "error" not in found and all(one["verified"] for one in found["results"])
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
