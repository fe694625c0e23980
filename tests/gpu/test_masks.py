"""Buffers that go on without a rank that is lost, on torch's tensors, against float64."""

from __future__ import annotations

import secrets
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")

from gpu.buffer_ranks import (  # noqa: E402
    Batch,
    Ranks,
    Size,
    check_combined,
    check_received,
    finish,
    options_of,
    reserve,
)
from gpu.buffer_trips import low_latency  # noqa: E402

SIZE = Size(tokens=40, hidden=1024, experts=24, topk=6)
FORMS = [("plain", False), ("hook", True), ("async", False), ("plain", True), ("hook", False)]


def shrinking(world: int) -> Any:
    return low_latency(world, SIZE, timeout_s=3.0, enable_shrink=True)


def batches_of(world: int, seed: int) -> list[Batch]:
    made = [
        Batch.random(seed + rank, SIZE.tokens, SIZE.hidden, SIZE.experts, SIZE.topk)
        for rank in range(world)
    ]
    torch.cuda.synchronize()
    return made


def trip_without(
    ranks: Ranks, seed: int, form: tuple[str, bool], without: frozenset[int]
) -> list[Any]:
    """Out and back among the ranks that are left; each rank's mask, None of the lost ones."""
    world, (way, fp8) = ranks.world, form
    batches = batches_of(world, seed)
    masks = [torch.full((world,), 7, dtype=torch.int32, device="cuda") for _ in range(world)]
    shape = (SIZE.experts // world, world * SIZE.tokens, SIZE.hidden)
    made = [torch.randn(shape, device="cuda").bfloat16() for _ in batches]
    outs = [torch.full_like(batch.x, float("nan")) for batch in batches]
    torch.cuda.synchronize()
    ranks.each(lambda _: reserve(SIZE.outputs_bytes))

    def call(rank: int) -> Any:
        if rank in without:
            return None
        buffer, batch = ranks.buffers[rank], batches[rank]
        result = finish(
            buffer.low_latency_dispatch(
                batch.x, batch.topk, SIZE.tokens, SIZE.experts, use_fp8=fp8, **options_of(way)
            ),
            way,
        )
        finish(
            buffer.low_latency_combine(
                made[rank], batch.topk, batch.weights, result[2], out=outs[rank],
                **options_of(way),
            ),
            way,
        )  # fmt: skip
        buffer.low_latency_query_mask_buffer(masks[rank])
        return result

    received = ranks.each(call)
    sent = [
        Batch(*(value[:0] if rank in without else value for value in vars(batch).values()))
        for rank, batch in enumerate(batches)
    ]
    check_received(sent, received, SIZE.experts, without)
    check_combined(batches, received, made, outs, SIZE.experts, without)
    return [None if rank in without else mask.tolist() for rank, mask in enumerate(masks)]


def test_seven_of_eight_go_on_with_right_numbers() -> None:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    lost = seed % 8
    with shrinking(8) as ranks:
        for number, form in enumerate(FORMS):
            assert trip_without(ranks, seed + 100 * number, form, frozenset()) == [[0] * 8] * 8
        masked = [int(rank == lost) for rank in range(8)]
        for number, form in enumerate(FORMS):
            found = trip_without(ranks, seed + 100 * number + 50, form, frozenset({lost}))
            assert found == [None if rank == lost else masked for rank in range(8)]


def test_what_a_mask_says_can_be_changed_and_cleaned() -> None:
    with shrinking(3) as ranks:
        status = [torch.full((3,), 7, dtype=torch.int32, device="cuda") for _ in range(3)]
        seed = secrets.randbits(31)
        print(f"seed {seed}")
        assert trip_without(ranks, seed, ("plain", False), frozenset({1})) == [
            [0, 1, 0],
            None,
            [0, 1, 0],
        ]

        def clean(rank: int) -> None:
            buffer = ranks.buffers[rank]
            buffer.low_latency_clean_mask_buffer()
            buffer.low_latency_update_mask_buffer(2 - rank, True)
            buffer.low_latency_query_mask_buffer(status[rank])

        ranks.each(clean)
        assert [one.tolist() for one in status] == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
