"""What ATOMICs take at the transport's seam: over tcp, and over verbs in a VM beside perftest's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..native import BUILD, arguments
from ..quantiles import median
from ..run import Bench, Run
from ..series import OURS, Line
from .verbs import guest_says, lines_of, missing

GUEST = Path(__file__).with_name("atomics_guest.sh")


def measure(run: Run) -> list[Line]:
    over_tcp: list[Line] = []
    trips = run.scaled(full=5_000, small=100)
    for number in range(run.rounds):
        over_tcp += run.native("atomics", first=number, rounds=1, trips=trips)
    return [replace(line, case=f"tcp: {line.case}") for line in over_tcp] + over_verbs(run)


def over_verbs(run: Run) -> list[Line]:
    rounds = run.scaled(full=run.rounds, small=1)  # of two programs each, emulated
    sizes = arguments({"trips": run.scaled(full=1_000, small=20)})
    lines = lines_of(guest_says(run, GUEST, [str(BUILD / "atomics"), str(rounds), *sizes]))
    return [replace(like_peers(line), case=f"soft RoCE: {line.case}") for line in lines]


def like_peers(line: Line) -> Line:
    """perftest tells the typical one of a round alone."""
    beside = line.case == "ADD by NIC" and line.side == OURS
    return replace(line, samples=(median(line.samples),)) if beside else line


BENCH = Bench(
    "atomics",
    "ADD by the owner's agent and by its NIC, over tcp and over soft RoCE in a VM",
    measure,
    missing=missing,
    named=True,  # minutes, in a VM
)
