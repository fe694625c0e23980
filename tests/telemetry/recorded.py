"""Makes snapshots of durations that a test drew, counted as the core counts them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from epfabric_agent.telemetry.histogram import Histogram
from epfabric_agent.telemetry.snapshot import (
    BarrierSample,
    GroupSample,
    PeerSample,
    SessionSample,
    Snapshot,
)

SCALE = 5
Draws = Mapping[str, np.ndarray]


def draw(rng: np.random.Generator, phases: Mapping[str, float], count: int) -> Draws:
    """Log-normal durations in seconds by phase, around the given medians."""
    return {
        phase: rng.lognormal(math.log(median), rng.uniform(0.2, 0.8), count)
        for phase, median in phases.items()
    }


def counted(values: np.ndarray) -> Histogram:
    index = np.ceil(np.log2(values) * 2**SCALE).astype(int) - 1
    low = int(index.min())
    counts = tuple(int(n) for n in np.bincount(index - low))
    extremes = float(values.min()), float(values.max())
    return Histogram(SCALE, low, counts, 0, float(values.sum()), *extremes)


def snapshot(draws: Draws, rank: int, peers: Mapping[str, int], commands: int) -> Snapshot:
    """One session of group ns/g that sent `peers` bytes, and what its node saw of barriers."""
    sent = tuple(PeerSample(node, "libfabric", 1, size, 1) for node, size in peers.items())
    session = SessionSample(
        "ns", "g", 1, rank, {"write": commands, "barrier": 1}, {"rank-left": 2}, {"rank-left": 2},
        0, 0, 3, 1, peers=sent,
    )  # fmt: skip
    phases = {phase: counted(values) for phase, values in draws.items()}
    barrier = BarrierSample("ns", "g", 1, phases, {rank: 5 + rank}, masked=0)
    group = GroupSample("ns", "g", 1, epochs={"opened": 1}, refusals={"abi": 1})
    return Snapshot("libfabric", "tcp;ofi_rxm", (session,), (barrier,), (group,))
