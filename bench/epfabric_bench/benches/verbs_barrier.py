"""Barriers of two agents over verbs, in a VM with soft RoCE, with quiet proxies beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..native import BUILD
from ..run import Bench, Run
from ..series import OURS, Line
from .verbs import guest_says, lines_of, missing

GUEST = Path(__file__).with_name("verbs_barrier_guest.sh")
PEER = "ib_write_lat, there and back"  # as many messages one after the other: ARRIVE, RELEASE


def measure(run: Run) -> list[Line]:
    # All trips of a round come within the second after which proxies block.
    trips, rounds = run.scaled(full=100, small=20), run.scaled(full=run.rounds, small=1)
    said = guest_says(run, GUEST, [str(BUILD / "paths"), str(rounds), str(trips)])
    return beside_each_case(lines_of(said))


def beside_each_case(lines: list[Line]) -> list[Line]:
    """perftest tells half a round trip, once a round; it stands beside each of our cases."""
    ours = [line for line in lines if line.side == OURS]
    peers = {line.round: line for line in lines if line.side != OURS}
    return ours + [
        replace(line, side=PEER, verified=True, samples=(2 * peers[line.round].samples[0],))
        for line in ours
    ]


BENCH = Bench(
    "verbs_barrier",
    "barriers of 2 agents over verbs in a VM, while their other proxies nap, or block",
    measure,
    missing=missing,
    named=True,  # minutes, in a VM
)
