"""Writes over verbs beside perftest's, at the endpoint's seam, in a VM with soft RoCE."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..native import BUILD, ROOT, BenchError, arguments
from ..run import Bench, Run
from ..series import LESS, MORE, Limit, Line, parse_line

SIZES = {"8 B": 8, "7 KiB": 7168}
GUEST = Path(__file__).with_name("verbs_guest.sh")
RAILS = ROOT / "tests/rdma/rails.sh"
MARK = re.compile(r"PEER (\w+) (\d+) (\d+)")
ROW = re.compile(r"\s*\d+(\s+[\d.]+)+\s*")


def missing() -> str | None:
    from harness import vm

    return vm.missing()


def measure(run: Run) -> list[Line]:
    trips, writes = run.scaled(full=1_000, small=20), run.scaled(full=5_000, small=200)
    rounds = run.scaled(full=run.rounds, small=1)  # of four programs each, emulated
    sizes = arguments({"trips": trips, "writes": writes})
    program = [str(BUILD / "verbs"), str(rounds), *sizes]
    return lines_of(guest_says(run, GUEST, program))


def guest_says(run: Run, script: Path, program: list[str]) -> str:
    """What a script printed in the VM. Raises BenchError."""
    from harness import vm
    from harness.process import HarnessError

    paths = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "RAILS": str(RAILS)}
    try:
        code, said = vm.run(["bash", script, *program], paths, run.scaled(full=1500, small=700))
    except HarnessError as error:
        raise BenchError(str(error)) from error
    if code != 0:
        raise BenchError(f"{script.name} ended with {code}:\n{said[-3000:]}")
    return said


def lines_of(said: str) -> list[Line]:
    """Ours are lines of samples; a peer's table follows the line that marks it."""
    lines: list[Line] = []
    what = size = number = ""
    for text in said.splitlines():
        if text.startswith("{"):
            lines.append(parse_line(text))
        elif mark := MARK.fullmatch(text):
            what, size, number = mark.groups()
        elif what and ROW.fullmatch(text):
            lines.append(peers(what, int(size), int(number), [float(v) for v in text.split()]))
            what = ""
    return lines


def peers(what: str, size: int, number: int, row: list[float]) -> Line:
    """perftest looks at no data: `verified` says that it ran."""
    if what == "ib_atomic_lat":  # as the next
        return Line("ADD by NIC", "add_seconds", "s", LESS, what, number, True, (row[4] * 1e-6,))
    case = next(name for name, bytes_ in SIZES.items() if bytes_ == size)
    if what == "ib_write_lat":  # bytes, iterations, min, max, typical …, in µs
        value, metric, unit, better = row[4] * 1e-6, "write_latency_seconds", "s", LESS
    else:  # bytes, iterations, peak, average, millions of messages a second
        value, metric, unit, better = row[4] * 1e6, "messages_per_second", "1/s", MORE
    return Line(case, metric, unit, better, what, number, True, (value,))


BENCH = Bench(
    "verbs",
    "writes over verbs between two soft-RoCE devices in a VM, at the endpoint's seam",
    measure,
    limits=(
        Limit("write_latency_seconds", bound=1.15, goal=1.15, of="ratio"),
        Limit("messages_per_second", bound=0.9, goal=0.9, of="ratio"),
    ),
    missing=missing,
    named=True,  # minutes, in a VM
)
