"""Buffers for low-latency calls, and calls of all their ranks, out and back; for tests."""

from __future__ import annotations

import secrets
from typing import Any

import torch
from epfabric import Buffer
from gpu.buffer_ranks import (
    Batch,
    Ranks,
    Size,
    buffers,
    check_combined,
    check_received,
    finish,
    options_of,
    reserve,
)

HIDDEN, EXPERTS, TOKENS, TOPK = 1024, 12, 40, 4
SIZE = Size(TOKENS, HIDDEN, EXPERTS, TOPK)
KINDS: dict[str, dict[str, bool]] = {
    "bf16": {"use_fp8": False},
    "fp8": {},
    "powers": {"round_scale": True},
    "ue8m0": {"round_scale": True, "use_ue8m0": True},
}
WAYS = ("plain", "async", "hook")


def low_latency(world: int = 2, size: Size = SIZE, **options: Any) -> Any:
    nbytes = Buffer.get_low_latency_rdma_size_hint(size.tokens, size.hidden, world, size.experts)
    return buffers(world, num_rdma_bytes=nbytes, low_latency_mode=True, **options)


def batches_of(ranks: Ranks, size: Size = SIZE) -> list[Batch]:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    counts = [(seed >> 3 * rank) % (size.tokens + 1) for rank in range(ranks.world)]
    counts[seed % ranks.world] = size.tokens
    if seed % 3 == 0 and ranks.world > 1:
        counts[(seed + 1) % ranks.world] = 0
    made = [
        Batch.random(seed + rank, count, size.hidden, size.experts, size.topk)
        for rank, count in enumerate(counts)
    ]
    torch.cuda.synchronize()
    return made


def round_trip(
    ranks: Ranks, kind: str = "bf16", way: str = "plain", zero_copy: bool = False,
    size: Size = SIZE,
) -> None:  # fmt: skip
    batches = batches_of(ranks, size)
    ranks.each(lambda _: reserve(size.outputs_bytes))

    def dispatch(rank: int) -> Any:
        buffer, batch = ranks.buffers[rank], batches[rank]
        return finish(
            buffer.low_latency_dispatch(
                batch.x, batch.topk, size.tokens, size.experts, **KINDS[kind], **options_of(way)
            ),
            way,
        )

    received = ranks.each(dispatch)
    check_received(batches, received, size.experts)
    shape = (size.experts // ranks.world, ranks.world * size.tokens, size.hidden)
    made = [torch.randn(shape, device="cuda").bfloat16() for _ in batches]
    outs = [torch.full_like(batch.x, float("nan")) for batch in batches]
    rows = list(made)
    if zero_copy:
        both = zip(ranks.buffers, received, strict=True)
        rows = [buffer.get_next_low_latency_combine_buffer(out[2]) for buffer, out in both]
        for target, source in zip(rows, made, strict=True):
            target.copy_(source)
    torch.cuda.synchronize()

    def combine(rank: int) -> Any:
        buffer, batch, handle = ranks.buffers[rank], batches[rank], received[rank][2]
        result = buffer.low_latency_combine(
            rows[rank], batch.topk, batch.weights, handle, zero_copy=zero_copy, out=outs[rank],
            **options_of(way),
        )  # fmt: skip
        return finish(result, way)[0]

    combined = ranks.each(combine)
    assert all(one is out for one, out in zip(combined, outs, strict=True))
    check_combined(batches, received, made, combined, size.experts)
