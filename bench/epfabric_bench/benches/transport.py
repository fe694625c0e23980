"""Writes with their signal between two processes over tcp;ofi_rxm, at the transport's seam."""

from __future__ import annotations

import os
import socket
import subprocess
import time

from ..native import BenchError
from ..run import Bench, Run
from ..series import LESS, Limit, Line

PEER = "fi_pingpong"
SIZES = {"8 B": 8, "7 KiB": 7168}
LIMIT_S = 60.0
PATH = 2  # paths.cc's `what`


def measure(run: Run) -> list[Line]:
    lines: list[Line] = []
    for number in range(run.rounds):
        sides = [ours, peers]
        for side in sides if number % 2 == 0 else reversed(sides):
            lines += side(run, number)
    return lines + run.native("paths", what=PATH, trips=run.scaled(full=2_000, small=50))


def ours(run: Run, number: int) -> list[Line]:
    return run.native(
        "transport",
        rounds=1,
        first=number,
        trips=run.scaled(full=5_000, small=100),
        writes=run.scaled(full=100_000, small=2_000),
    )


def peers(run: Run, number: int) -> list[Line]:
    """The peer tells the mean of a run only, so that ours is compared as a mean too.

    Nobody looks at its data (its own check would count in its time): `verified` says that it ran.
    """
    trips = run.scaled(full=5_000, small=100)
    return [
        Line(case, "latency_seconds", "s", LESS, PEER, number, True, (ping_pong(run, size, trips),))
        for case, size in SIZES.items()
    ]


def ping_pong(run: Run, size: int, trips: int) -> float:
    """Seconds of half a round trip, as fi_pingpong says."""
    port = free_port()
    what = [PEER, "-p", "tcp;ofi_rxm", "-e", "rdm", "-I", str(trips), "-S", str(size)]
    limit_s = run.seconds(LIMIT_S)
    end = time.monotonic() + limit_s
    serve = [*on_core(1), *what, "-B", str(port)]
    with subprocess.Popen(serve, stdout=subprocess.DEVNULL) as server:
        try:
            while True:
                client = subprocess.run(
                    [*on_core(0), *what, "-P", str(port), "127.0.0.1"],
                    capture_output=True,
                    text=True,
                    timeout=limit_s,
                    check=False,
                )
                if client.returncode == 0:
                    return seconds_of(client.stdout)
                if server.poll() is not None or time.monotonic() > end:
                    raise BenchError(f"{PEER} failed: {client.stdout}{client.stderr}")
                time.sleep(0.05)  # the server does not listen yet
        finally:
            server.terminate()


def on_core(number: int) -> list[str]:
    """As the sides of native/transport.cc are pinned."""
    cores = sorted(os.sched_getaffinity(0))
    return ["taskset", "-c", str(cores[number])] if number < len(cores) else []


def seconds_of(table: str) -> float:
    """The column usec/xfer of the last line."""
    head, row = (line.split() for line in table.splitlines()[-2:])
    return float(row[head.index("usec/xfer")]) * 1e-6


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


BENCH = Bench(
    "transport",
    "writes with their signal between two processes over tcp;ofi_rxm, at the transport's seam",
    measure,
    limits=(Limit("latency_seconds", bound=1.5, goal=1.1, of="ratio"),),
)
