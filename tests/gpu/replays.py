"""CUDA graphs of low-latency calls, replayed often with other tokens each time; for the tests of
ranks that share memory, and of those on other nodes."""

from __future__ import annotations

import numpy as np
from cuda.bindings import driver
from epfabric.cuda.low_latency import RECEIVE, SEND
from epfabric.cuda.rank import checked
from gpu.expert_ranks import (
    Array,
    Batch,
    Rank,
    bf16_of,
    came,
    check_combine,
    check_dispatch,
    trip,
)

REPLAYS = 10_000
CHECKED = 100  # each so many-th replay is; and others at random
BATCHES = 8  # in turn


class Stored:
    """A rank's batches in GPU memory, from where a replay's inputs are copied on its stream."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches
        self._arrays = [[self._array(value) for value in vars(one).values()] for one in batches]
        checked(driver.cuStreamSynchronize(0))

    @staticmethod
    def _array(values: np.ndarray) -> Array:
        array = Array(values.shape, values.dtype.type)
        array.write(values)
        return array

    def give(self, rank: Rank, number: int) -> None:
        out = rank.sets[0]
        targets = (out.tokens, out.topk, out.weights)
        for target, array in zip(targets, self._arrays[number], strict=True):
            checked(
                driver.cuMemcpyDtoDAsync(target.address, array.address, array.nbytes, rank.stream)
            )
        out.batch = self.batches[number]

    def close(self) -> None:
        for arrays in self._arrays:
            for array in arrays:
                array.close()


def replay_graphs(
    ranks: list[Rank], rng: np.random.Generator, calls: int, hooked: bool,
    replays: int = REPLAYS,
) -> None:  # fmt: skip
    """`calls` dispatches and combines in a graph of each rank; hooked: sent first, then received.

    What a replay brought is compared now and then; the same calls without a graph come in between.
    """
    shape = ranks[0].end.shape
    trip(ranks, rng)
    none = (0.1, 0.3, 1.0)  # of experts; of the last kind a rank sends nothing
    stored = [
        Stored([Batch.random(rng, shape, shape.tokens, none[i % 3]) for i in range(BATCHES)])
        for _ in ranks
    ]
    graphs = [
        capture(rank, one.batches[0], calls, hooked)
        for rank, one in zip(ranks, stored, strict=True)
    ]
    rows = [bf16_of(rng.standard_normal(rank.sets[0].rows.shape)) for rank in ranks]
    fill(ranks, rows)
    looks = set(range(CHECKED - 1, replays, CHECKED)) | set(
        rng.integers(0, replays, replays // 400).tolist()
    )
    for replay in range(replays):
        if replay in looks:
            came(ranks)
            for rank in ranks:
                rank.sets[0].poison_outputs()
        for rank, one in zip(ranks, stored, strict=True):
            one.give(rank, int(rng.integers(BATCHES)))
        for rank, graph in zip(ranks, graphs, strict=True):
            checked(driver.cuGraphLaunch(graph, rank.stream))
        if replay in looks:
            came(ranks)
            check_dispatch(ranks)
            check_combine(ranks, rows)
            trip(ranks, rng)  # without a graph
            fill(ranks, rows)
    came(ranks)
    for graph in graphs:
        checked(driver.cuGraphExecDestroy(graph))
    for one in stored:
        one.close()


def fill(ranks: list[Rank], rows: list[np.ndarray]) -> None:
    """What experts send back, whatever tokens they have."""
    for rank, values in zip(ranks, rows, strict=True):
        rank.sets[0].rows.write(values)
    checked(driver.cuStreamSynchronize(0))


def capture(rank: Rank, batch: Batch, calls: int, hooked: bool) -> driver.CUgraphExec:
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    rank.sync()
    rank.sets[0].take(batch)
    checked(driver.cuStreamBeginCapture(rank.stream, mode))
    for _ in range(calls):
        for phases in (SEND, RECEIVE) if hooked else (SEND | RECEIVE,):
            rank.dispatch(None, phases=phases)
        for phases in (SEND, RECEIVE) if hooked else (SEND | RECEIVE,):
            rank.combine(phases=phases)
    graph = checked(driver.cuStreamEndCapture(rank.stream))
    return checked(driver.cuGraphInstantiate(graph, 0))
