"""A rank that dispatches and combines with ranks of another node; run by test_proxied.py as
proxied_rank.py is.

Its Buffer has both kinds of calls, each with a region of its own. Every rank makes the batches of
all from the seed, so that each can check alone what comes.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import epfabric
import torch
from epfabric import Buffer
from epfabric.buffer import Config
from gpu.brokered_rank import CALLS, EXPERTS, HIDDEN, TOKENS, batches_of, exchange
from gpu.buffer_ranks import Batch
from gpu.proxied_rank import full

CONFIG = Config(4, 6, 24, 6, 24)  # rings go round
REPLAYS = 3  # more are in test_throughput_cores.py, where ranks need not take turns


def flags_of(batch: Batch, world: int) -> Any:
    """Which tokens go to which rank."""
    ranks = torch.where(batch.topk < 0, -1, batch.topk // (EXPERTS // world))
    return torch.stack([(ranks == rank).any(dim=1) for rank in range(world)], dim=1)


def came(values: list[Any], batches: list[Batch], rank: int) -> Any:
    flags = [flags_of(batch, len(batches)) for batch in batches]
    return torch.cat([value[flag[:, rank]] for value, flag in zip(values, flags, strict=True)])


def check_rows(batches: list[Batch], rank: int, result: Any, worst: int) -> None:
    world, local = len(batches), EXPERTS // len(batches)
    out, topk, weights, counts, *_ = result
    rows = came([batch.x for batch in batches], batches, rank)
    assert len(out) == (worst or len(rows))
    assert torch.equal(out[: len(rows)], rows)
    named = came([batch.topk for batch in batches], batches, rank) - rank * local
    here = (named >= 0) & (named < local)
    assert torch.equal(topk[: len(rows)], torch.where(here, named, -1))
    assert (topk[len(rows) :] == -1).all()
    sent = came([batch.weights for batch in batches], batches, rank)
    assert torch.equal(weights[: len(rows)], torch.where(here, sent, 0.0))
    if not worst:
        each = [int((named == expert).any(dim=1).sum()) for expert in range(local)]
        assert counts == [-(-one // 4) * 4 for one in each], world


def check_sums(batch: Batch, world: int, result: Any, biases: tuple[Any, ...]) -> None:
    """Each rank sent its rows back times a power of two of its own; sums are rounded twice."""
    combined, weights, _ = result
    factors = 2.0 ** torch.arange(world, device="cuda", dtype=torch.float64)
    wanted = batch.x.double() * (flags_of(batch, world) * factors).sum(dim=1)[:, None]
    size = wanted.abs()
    for bias in biases:
        wanted, size = wanted + bias.double(), size + bias.double().abs()
    assert ((combined.double() - wanted).abs() <= size * 2.0**-6 + 1e-30).all()
    assert torch.equal(weights, torch.where(batch.topk >= 0, batch.weights, 0.0))


def dispatch(buffer: Any, batch: Batch, worst: int, aside: bool) -> Any:
    by_rank, by_node, by_expert, flags, event = buffer.get_dispatch_layout(
        batch.topk, EXPERTS, async_finish=aside
    )
    result = buffer.dispatch(
        batch.x, num_tokens_per_rank=by_rank, num_tokens_per_rdma_rank=by_node,
        is_token_in_rank=flags, num_tokens_per_expert=by_expert, topk_idx=batch.topk,
        topk_weights=batch.weights, expert_alignment=4, num_worst_tokens=worst, config=CONFIG,
        previous_event=event if aside else None, async_finish=aside,
    )  # fmt: skip
    if aside:
        result[5].current_stream_wait()
    return by_node, result


def trip(buffer: Any, batches: list[Batch], call: int) -> None:
    world, rank = len(batches), buffer.rank
    batch, aside = batches[rank], call % 2 == 1
    worst = world * TOKENS if call % 3 == 2 else 0
    by_node, result = dispatch(buffer, batch, worst, aside)
    each = buffer.parts.throughput.end.node_ranks
    nodes = flags_of(batch, world).view(len(batch.x), world // each, each).any(dim=2).sum(dim=0)
    assert torch.equal(by_node.long(), nodes)
    check_rows(batches, rank, result, worst)
    if call % 2 == 0:  # the same routing, by the handle
        again = buffer.internode_dispatch(-batch.x, handle=result[4], config=CONFIG)
        rows = came([-one.x for one in batches], batches, rank)
        assert torch.equal(again[0][: len(rows)], rows)
        assert again[1:5] == (None,) * 4
    biases = tuple(torch.randn_like(batch.x) for _ in range(call % 3))
    combined = buffer.internode_combine(
        result[0] * 2.0**rank, result[4], topk_weights=result[2],
        bias=biases if len(biases) == 2 else (*biases, None)[0], config=CONFIG, async_finish=aside,
    )  # fmt: skip
    if aside:
        combined[2].current_stream_wait()
    check_sums(batch, world, combined, biases)


def replays(buffer: Any, seed: int, world: int, calls: int) -> None:
    """`calls` dispatches and combines in a graph, which is replayed with other tokens each time."""
    mine, worst = full(seed, world)[buffer.rank], world * TOKENS
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            _, result = dispatch(buffer, mine, worst, aside=False)
            combined = buffer.combine(
                result[0] * 2.0**buffer.rank, result[4], topk_weights=result[2], config=CONFIG
            )
    for number in range(REPLAYS):
        batches = full(seed + 100 * (number + 1), world)
        for old, new in zip(vars(mine).values(), vars(batches[buffer.rank]).values(), strict=True):
            old.copy_(new)
        torch.cuda.synchronize()
        graph.replay()
        torch.cuda.synchronize()
        check_rows(batches, buffer.rank, result, worst)
        check_sums(mine, world, combined, ())
        trip(buffer, batches_of(seed, world, number), number)


def without_the_last(buffer: Any, batch: Batch) -> str:
    """Why calls that the last rank does not come to ended, and all after them."""
    if buffer.rank == buffer.group_size - 1:
        os._exit(0)
    why = ""
    for _ in range(3):
        try:
            dispatch(buffer, batch, 0, aside=False)
        except epfabric.SessionError as error:
            why = str(error)
    return why


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
        bulk = session.register(Buffer.get_throughput_region_bytes(CONFIG, 2 * HIDDEN, world))
        session.join()
        buffer = Buffer(
            None,
            num_nvl_bytes=CONFIG.get_nvl_buffer_size_hint(2 * HIDDEN, world),
            num_rdma_bytes=Buffer.get_low_latency_rdma_size_hint(*sizes),
            low_latency_mode=True,
            explicitly_destroy=True,
            session=session,
            region=region,
            throughput_region=bulk,
        )
        end = buffer.parts.throughput.end
        said: dict[str, Any] = {"proxied": sorted(end.proxied), "node_ranks": end.node_ranks}
        said["error"] = ""
        for call in range(CALLS):
            trip(buffer, batches_of(seed, world, call), call)
            exchange(buffer, batches_of(seed, world, call), use_fp8=call % 2 == 1)
        if lost:
            said["error"] = without_the_last(buffer, batches_of(seed, world, 0)[rank])
            print(json.dumps(said), flush=True)
            os._exit(0)
        replays(buffer, seed + 1, world, calls=2)
        buffer.destroy()
    print(json.dumps(said), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
