"""Low-latency calls between ranks of several nodes, which are cores of this process, over tcp, and
the same between ranks that share memory; against numpy. test_proxied.py has them with agents."""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager

import numpy as np
import pytest
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.low_latency import RECEIVE, SEND, SOURCE
from epfabric.cuda.window import Shape
from gpu.core_ranks import core_ranks
from gpu.expert_ranks import (
    Batch,
    Rank,
    came,
    check_combine,
    check_dispatch,
    expert_ranks,
    expert_rows,
    trip,
)
from gpu.replays import replay_graphs
from harness.device import Gpu

APART = [[0], [1]]
GROUPS = [
    (APART, Shape(world=2, experts=64, tokens=128, hidden=7168, topk=8)),
    (APART, Shape(world=2, experts=2, tokens=4096, hidden=512, topk=1)),
    ([[0, 1], [2, 3]], Shape(world=4, experts=32, tokens=60, hidden=2048, topk=4)),
    ([[0], [1, 2], [3]], Shape(world=4, experts=12, tokens=40, hidden=512, topk=3)),
    ([[0, 1, 2], [3, 4, 5, 6]], Shape(world=7, experts=35, tokens=9, hidden=8192, topk=7)),
    ([[0, 1, 2, 3], [4, 5, 6, 7]], Shape(8, experts=1024, tokens=12, hidden=2560, topk=16)),
]
WAYS = pytest.mark.parametrize("nodes", [None, APART], ids=["memory", "cores"])


@pytest.fixture(scope="module")
def kernels(gpu: Gpu) -> Kernels:
    return Kernels(SOURCE)


@pytest.fixture
def rng() -> np.random.Generator:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def pair(
    kernels: Kernels, shape: Shape, nodes: list[list[int]] | None, kinds: tuple[bool, ...]
) -> AbstractContextManager[list[Rank]]:
    """Two ranks, of one node or of two."""
    if nodes is None:
        return expert_ranks(kernels, shape, kinds=kinds)
    return core_ranks(kernels, shape, nodes, kinds=kinds)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    GROUPS,
    ids=lambda v: f"{v.tokens}-{v.hidden}" if isinstance(v, Shape) else None,
)
def test_tokens_reach_experts_of_other_nodes_and_come_back_summed(
    kernels: Kernels, rng: np.random.Generator, nodes: list[list[int]], shape: Shape
) -> None:
    with core_ranks(kernels, shape, nodes, kinds=(False, True)) as ranks:
        home = {rank: number for number, node in enumerate(nodes) for rank in node}
        for number, node in home.items():
            elsewhere = {other for other in home if home[other] != node}
            assert ranks[number].end.proxied == elsewhere
        for call in range(4):
            for rank in ranks:
                rank.sets[call % 2].early = call > 1
            trip(ranks, rng, which=call % 2, power=call == 3)


@WAYS
def test_a_dispatch_of_the_other_kind_writes_over_nothing_that_is_not_read_yet(
    kernels: Kernels, rng: np.random.Generator, nodes: list[list[int]] | None
) -> None:
    """Both are there before either is received; every other time nothing is sent back."""
    shape = Shape(world=2, experts=8, tokens=50, hidden=1024, topk=4)
    with pair(kernels, shape, nodes, kinds=(False, True)) as ranks:
        for call in range(8):
            order = (0, 1) if call % 4 < 2 else (1, 0)
            for which in order:
                for rank in ranks:
                    rank.dispatch(Batch.random(rng, shape, 50), which, SEND)
            came(ranks)
            for which in order:
                for rank in ranks:
                    rank.dispatch(None, which, RECEIVE)
            came(ranks)
            for which in order:
                check_dispatch(ranks, which)
            if call % 2 == 0:
                continue
            for which in order:
                results = expert_rows(ranks, rng, which)
                for rank in ranks:
                    rank.combine(which)
                came(ranks)
                check_combine(ranks, results, which)


@WAYS
def test_calls_of_another_size_write_over_nothing_of_those_before(
    kernels: Kernels, rng: np.random.Generator, nodes: list[list[int]] | None
) -> None:
    """The last call before another size is a dispatch alone, which the ranks end one by one."""
    large = Shape(world=2, experts=16, tokens=90, hidden=2048, topk=8)
    small = Shape(world=2, experts=4, tokens=7, hidden=256, topk=2)
    with pair(kernels, large, nodes, kinds=(False, True)) as ranks:
        for number, shape in enumerate((large, small, large, small, large)):
            for rank in ranks:
                rank.remake(shape)
            for rank in ranks:
                rank.reshape(shape)
            for which in (number % 2, 1 - number % 2):
                trip(ranks, rng, which=which)
            for which in (0, 1, 0):
                for rank in ranks:
                    rank.dispatch(Batch.random(rng, shape, shape.tokens), which)
                came(ranks)
                check_dispatch(ranks, which)


@WAYS
def test_a_call_to_which_no_rank_brings_a_token_ends_and_the_next_is_right(
    kernels: Kernels, rng: np.random.Generator, nodes: list[list[int]] | None
) -> None:
    shape = Shape(world=2, experts=8, tokens=20, hidden=512, topk=4)
    with pair(kernels, shape, nodes, kinds=(False,)) as ranks:
        for count in (0, 20, 0, 0, 20):
            for rank in ranks:
                rank.dispatch(Batch.random(rng, shape, count))
            came(ranks)
            check_dispatch(ranks)
            results = expert_rows(ranks, rng)
            for rank in ranks:
                rank.combine()
            came(ranks)
            check_combine(ranks, results)


@pytest.mark.parametrize(("calls", "hooked"), [(1, False), (2, True)], ids=["1-whole", "2-hooks"])
def test_a_graph_is_replayed_with_changing_routing(
    kernels: Kernels, rng: np.random.Generator, calls: int, hooked: bool
) -> None:
    shape = Shape(world=2, experts=16, tokens=32, hidden=1024, topk=4)
    with core_ranks(kernels, shape, APART, kinds=(hooked,)) as ranks:
        replay_graphs(ranks, rng, calls, hooked)
