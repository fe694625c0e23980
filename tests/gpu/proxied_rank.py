"""A rank whose peers are on another node, as far as agents go; run by test_proxied.py: SOCKET WORLD
RANK DEVICE SEED END.

Its Buffer has a region that it registered in host memory. Prints one line of JSON: which ranks it
reaches through the agents, how its calls ended. END is `together`, or `lost`: the last rank ends
without a word.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import epfabric
import torch
from epfabric import Buffer
from gpu.brokered_rank import (
    CALLS,
    EXPERTS,
    HIDDEN,
    TOKENS,
    TOPK,
    batches_of,
    exchange,
    without_the_last,
)
from gpu.buffer_ranks import Batch, check_rows_of_experts

REPLAYS = 12


def full(seed: int, world: int) -> list[Batch]:
    """As many tokens as there may be, of each rank."""
    return [Batch.random(seed + rank, TOKENS, HIDDEN, EXPERTS, TOPK) for rank in range(world)]


def replays(buffer: Any, seed: int, world: int, calls: int) -> None:
    """`calls` dispatches and combines in a graph, which is replayed with other tokens each time."""
    mine = full(seed, world)[buffer.rank]
    shape = (EXPERTS // world, world * TOKENS, HIDDEN)
    rows = torch.ones(shape, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(mine.x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            result = buffer.low_latency_dispatch(mine.x, mine.topk, TOKENS, EXPERTS, use_fp8=False)
            buffer.low_latency_combine(rows, mine.topk, mine.weights, result[2], out=out)
    for number in range(REPLAYS):
        batches = full(seed + 100 * (number + 1), world)
        new = batches[buffer.rank]
        mine.x.copy_(new.x)
        mine.topk.copy_(new.topk)
        mine.weights.copy_(new.weights)
        out.fill_(float("nan"))
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        check_rows_of_experts(batches, buffer.rank, result, EXPERTS)
        # The rows are ones: what comes back is the sum of the token's weights.
        wanted = (new.weights.double() * (new.topk >= 0)).sum(dim=1, keepdim=True)
        assert ((out.double() - wanted).abs() <= wanted * 2.0**-7 + 1e-30).all()
        exchange(buffer, batches_of(seed, world, number), use_fp8=number % 2 == 1)


def main() -> int:
    path, (world, rank, device, seed) = sys.argv[1], map(int, sys.argv[2:6])
    lost = sys.argv[6] == "lost"
    Buffer.timeout_s = 10_000.0 if lost else 60.0  # in the first case only an abort ends a wait
    Buffer.low_latency_sms = 16  # all ranks are on one GPU
    torch.cuda.set_device(device)
    torch.zeros(1, device="cuda")  # there is a context from here on
    sizes = (TOKENS, HIDDEN, world, EXPERTS)
    with epfabric.connect(path, rank, world, timeout_s=120) as session:
        region = session.register(Buffer.get_low_latency_region_bytes(*sizes))
        session.join()
        buffer = Buffer(
            None,
            num_rdma_bytes=Buffer.get_low_latency_rdma_size_hint(*sizes),
            low_latency_mode=True,
            explicitly_destroy=True,
            session=session,
            region=region,
        )
        said: dict[str, Any] = {"proxied": sorted(buffer.parts.low_latency.end.proxied)}
        said["error"] = ""
        for call in range(CALLS):
            exchange(buffer, batches_of(seed, world, call), use_fp8=call % 3 == 2)
        if lost:
            said["error"] = without_the_last(buffer, batches_of(seed, world, 0)[rank])
            print(json.dumps(said), flush=True)
            os._exit(0)
        for calls in (1, 2):
            replays(buffer, seed + calls, world, calls)
        buffer.destroy()
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
