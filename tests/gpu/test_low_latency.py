"""Low-latency dispatch and combine among ranks that share this GPU, against numpy."""

from __future__ import annotations

import ctypes
import secrets
from dataclasses import replace

import numpy as np
import pytest
from cuda.bindings import driver
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.low_latency import (
    RECEIVE,
    SEND,
    SOURCE,
    CombineCall,
    DeviceBuffer,
    DispatchCall,
)
from epfabric.cuda.rank import checked
from epfabric.cuda.window import Shape, transit_of, window_of
from epfabric.errors import SessionError
from gpu.expert_ranks import (
    Array,
    Batch,
    Rank,
    check_combine,
    check_dispatch,
    expert_ranks,
    expert_rows,
    trip,
)
from gpu.replays import replay_graphs
from harness.device import Gpu


@pytest.fixture(scope="module")
def kernels(gpu: Gpu) -> Kernels:
    return Kernels(SOURCE)


@pytest.fixture
def rng() -> np.random.Generator:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


SHAPES = [
    Shape(world=1, experts=1, tokens=1, hidden=128, topk=1),
    Shape(world=2, experts=64, tokens=128, hidden=7168, topk=8),
    Shape(world=2, experts=4, tokens=300, hidden=2048, topk=2),
    Shape(world=4, experts=256, tokens=33, hidden=4096, topk=8),
    Shape(world=8, experts=1024, tokens=16, hidden=2560, topk=16),
    Shape(world=3, experts=6, tokens=1024, hidden=512, topk=6),
]


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.world}-{s.tokens}-{s.hidden}")
def test_tokens_reach_their_experts_and_come_back_summed(
    kernels: Kernels, rng: np.random.Generator, shape: Shape, fp8: bool
) -> None:
    with expert_ranks(kernels, shape, fp8=fp8) as ranks:
        for call in range(6):
            for rank in ranks:
                rank.sets[0].early = call % 3 == 1
            trip(ranks, rng, power=call == 3)


def test_scales_as_exponents_are_those_of_the_powers(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    shape = Shape(world=2, experts=8, tokens=20, hidden=1024, topk=4)
    with expert_ranks(kernels, shape, fp8=True) as ranks:
        batches = [Batch.random(rng, shape, 20) for _ in ranks]
        found = []
        for packed in (False, True):
            for rank, batch in zip(ranks, batches, strict=True):
                rank.dispatch(batch, power=True, packed=packed)
            for rank in ranks:
                rank.sync()
            found.append([self_described(rank, packed) for rank in ranks])
        assert found[0] == found[1]


def self_described(rank: Rank, packed: bool) -> set[tuple[int, int, int, bytes]]:
    """(expert, source, token, exponents) of every row, whatever its place."""
    out, shape = rank.sets[0], rank.end.shape
    scales, tokens, ranges = out.scales.read(), out.source_tokens.read(), out.ranges.read()
    if packed:
        words = scales.reshape(-1).view(np.uint8)
        groups = shape.hidden // 128
        used = words[: shape.local_experts * groups * shape.rows]
        quads = used.reshape(shape.local_experts, groups // 4, shape.rows, 4)
        exponents = quads.transpose(0, 2, 1, 3).reshape(shape.local_experts, shape.rows, -1)
    else:
        exponents = (scales.view(np.uint32) >> 23).astype(np.uint8).transpose(0, 2, 1)
    found = set()
    for expert in range(shape.local_experts):
        for source in range(shape.world):
            word = int(ranges[expert, source])
            for row in range(word >> 32, (word >> 32) + (word & 0xFFFFFFFF)):
                token = int(tokens[expert, row])
                found.add((expert, source, token, exponents[expert, row].tobytes()))
    return found


def test_an_expert_that_a_token_names_twice_counts_once(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    shape = Shape(world=2, experts=4, tokens=50, hidden=256, topk=4)
    with expert_ranks(kernels, shape) as ranks:
        for _ in range(3):
            for rank in ranks:
                batch = Batch.random(rng, shape, 50)
                rank.dispatch(replace(batch, topk=rng.integers(-1, 4, (50, 4))))
            for rank in ranks:
                rank.sync()
            check_dispatch(ranks)
            results = expert_rows(ranks, rng)
            for rank in ranks:
                rank.combine()
            for rank in ranks:
                rank.sync()
            check_combine(ranks, results)


def test_two_batches_overlap_on_one_buffer(kernels: Kernels, rng: np.random.Generator) -> None:
    shape = Shape(world=2, experts=16, tokens=64, hidden=1024, topk=4)
    with expert_ranks(kernels, shape) as ranks:
        for _ in range(4):
            for phases in (SEND, RECEIVE):
                for which in (0, 1):
                    for rank in ranks:
                        batch = Batch.random(rng, shape, 64) if phases == SEND else None
                        rank.dispatch(batch, which, phases)
            for rank in ranks:
                rank.sync()
            results = []
            for which in (0, 1):
                check_dispatch(ranks, which)
                results.append(expert_rows(ranks, rng, which))
            for phases in (SEND, RECEIVE):
                for which in (0, 1):
                    for rank in ranks:
                        rank.combine(which, phases)
            for rank in ranks:
                rank.sync()
            for which in (0, 1):
                check_combine(ranks, results[which], which)


def test_a_third_batch_that_nobody_receives_ends_with_its_reason(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    shape = Shape(world=2, experts=4, tokens=8, hidden=128, topk=2)
    with expert_ranks(kernels, shape, timeout_s=0.3) as ranks:
        for _ in range(3):
            for rank in ranks:
                rank.dispatch(Batch.random(rng, shape, 8), phases=SEND)
        for rank in ranks:
            rank.sync()
        assert any("in vain for room" in (rank.end.failure() or "") for rank in ranks)


def test_a_rank_that_does_not_come_fails_the_others_within_their_bound(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    shape = Shape(world=3, experts=6, tokens=8, hidden=128, topk=2)
    with expert_ranks(kernels, shape, timeout_s=0.3) as ranks:
        for rank in ranks[:2]:
            rank.dispatch(Batch.random(rng, shape, 8))
        for rank in ranks[:2]:
            rank.sync()
            assert rank.end.failure() == f"rank {rank.end.rank} waited in vain for tokens of rank 2"
            rank.dispatch(Batch.random(rng, shape, 8))  # does nothing, and ends
            rank.sync()


def test_seven_of_eight_go_on_without_the_one_that_is_lost(
    kernels: Kernels, rng: np.random.Generator
) -> None:
    shape = Shape(world=8, experts=32, tokens=16, hidden=512, topk=4)
    lost = int(rng.integers(8))
    with expert_ranks(kernels, shape, timeout_s=0.5, mask=True) as ranks:
        trip(ranks, rng)
        rest = [rank for rank in ranks if rank.end.rank != lost]
        for _ in range(5):
            for rank in rest:
                rank.dispatch(Batch.random(rng, shape, 16))
            for rank in rest:
                rank.sync()
                assert rank.end.masked() == {lost}
            results = expert_rows_of(ranks, rng, lost)
            for rank in rest:
                rank.combine()
            for rank in rest:
                rank.sync()
                assert rank.end.failure() is None
            check_combine(ranks, results, without=frozenset({lost}))


def expert_rows_of(
    ranks: list[Rank], rng: np.random.Generator, lost: int
) -> list[list[np.ndarray]]:
    rest = iter(expert_rows([r for r in ranks if r.end.rank != lost], rng))
    return [[] if rank.end.rank == lost else next(rest) for rank in ranks]


@pytest.mark.parametrize(("calls", "hooked"), [(1, True), (2, False)], ids=["1-hooks", "2-whole"])
def test_a_graph_is_replayed_with_changing_routing(
    kernels: Kernels, rng: np.random.Generator, calls: int, hooked: bool
) -> None:
    shape = Shape(world=2, experts=16, tokens=32, hidden=1024, topk=4)
    with expert_ranks(kernels, shape, fp8=hooked) as ranks:
        replay_graphs(ranks, rng, calls, hooked)


def test_the_mirrors_equal_the_compiled_ones(kernels: Kernels) -> None:
    for shape in SHAPES:
        out = Array((32,), np.uint64)
        values = (shape.world, shape.experts, shape.tokens, shape.hidden, shape.topk)
        kernels.launch("low_latency_mirror", 1, 0, (ctypes.c_uint32 * 5)(*values),
                       ctypes.c_uint64(out.address))  # fmt: skip
        checked(driver.cuCtxSynchronize())
        found = [int(value) for value in out.read()]
        out.close()
        at = window_of(shape)
        transit = transit_of(shape)
        wanted = [getattr(at, name) for name in at.__dataclass_fields__]
        wanted += [getattr(transit, name) for name in transit.__dataclass_fields__]
        wanted += [shape.message_bytes(False), shape.message_bytes(True), shape.copies]
        wanted += [48, 40, *map(ctypes.sizeof, (DeviceBuffer, DispatchCall, CombineCall))]
        assert found[: len(wanted)] == wanted


def test_a_grid_that_does_not_fit_is_refused(kernels: Kernels) -> None:
    with pytest.raises(SessionError, match="cannot be on the GPU at once"):
        kernels.check_resident("combine", 100_000)


def test_what_a_buffer_was_not_made_for_is_refused(kernels: Kernels) -> None:
    shape = Shape(world=1, experts=2, tokens=4, hidden=128, topk=2)
    with expert_ranks(kernels, shape) as ranks:
        with pytest.raises(SessionError, match="made for 4"):
            ranks[0].end.dispatch(DispatchCall(count=5, k=2), fp8=False, stream=0)
        with pytest.raises(SessionError, match="made for top-2"):
            ranks[0].end.combine(CombineCall(count=4, k=3), stream=0)
