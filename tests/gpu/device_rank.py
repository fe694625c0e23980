"""A rank of a Buffer in a process of its own, with the GPU that it is given. For device_ranks.py:
FILE WORLD RANK GPU WORK."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from epfabric import SessionError
from gpu.buffer_ranks import Batch, check_rows_of_experts, finish, options_of
from gpu.buffer_trips import KINDS, WAYS
from gpu.device_ranks import ENDS_ALONE
from gpu.device_trips import (
    Side,
    Size,
    low_latency_trip,
    throughput_trip,
)
from gpu.elastic_trips import WAYS as ELASTIC_WAYS
from gpu.elastic_trips import elastic as elastic_buffer
from gpu.elastic_trips import elastic_trip
from gpu.elastic_trips import made as made_elastic

SIZE = Size(tokens=200, hidden=2048, local=8, topk=8)


def low_latency(side: Side) -> None:
    with side.low_latency() as buffer:
        for call, kind in enumerate(KINDS):
            for way in WAYS:
                low_latency_trip(side, buffer, kind, way, zero_copy=call % 2 == 1)
        buffer.clean_low_latency_buffer(side.size.tokens, side.size.hidden, side.experts)
        low_latency_trip(side, buffer, "bf16", "plain")


def throughput(side: Side) -> None:
    with side.throughput() as buffer:
        for call in range(6):
            throughput_trip(side, buffer, call)


def elastic(side: Side) -> None:
    """Rows by rank and by expert; then a barrier to which the last rank does not come."""
    with elastic_buffer(side) as buffer:
        for call in range(len(ELASTIC_WAYS)):
            elastic_trip(side, buffer, call)
    buffer = made_elastic(side, timeout_s=3)
    lost = side.world - 1
    if side.rank == lost:
        return
    why = ""
    try:
        buffer.barrier(with_cpu_sync=True)
    except SessionError as error:
        why = str(error)
    assert f"for a call of rank {lost}" in why, why


def graphs(side: Side) -> None:
    """One call of each kind in a graph, then two: an odd and an even number."""
    for calls in (1, 2):
        with side.low_latency() as buffer:
            replay(side, buffer, calls)


class Captured:
    """A graph of low-latency dispatches and combines with hooks."""

    def __init__(self, side: Side, buffer: Any, batches: list[Batch], calls: int) -> None:
        self.side, self.batches = side, batches
        mine = batches[side.rank]
        self.rows = side.expert_rows(1.0)
        self.out = torch.empty_like(mine.x)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            for call in range(calls):
                way = WAYS[(call + calls) % 3]
                self.result = finish(
                    buffer.low_latency_dispatch(
                        mine.x, mine.topk, side.size.tokens, side.experts, use_fp8=False,
                        **options_of(way),
                    ),
                    way,
                )  # fmt: skip
                finish(
                    buffer.low_latency_combine(
                        self.rows, mine.topk, mine.weights, self.result[2], out=self.out,
                        **options_of(way),
                    ),
                    way,
                )  # fmt: skip

    def check(self) -> None:
        side = self.side
        check_rows_of_experts(self.batches, side.rank, self.result, side.experts)
        # Rows are ones: what comes back is the sum of the token's weights.
        mine = self.batches[side.rank]
        wanted = torch.where(mine.topk >= 0, mine.weights, 0.0).double().sum(dim=1, keepdim=True)
        assert ((self.out.double() - wanted).abs() <= wanted * 2.0**-7 + 1e-30).all()


def replay(side: Side, buffer: Any, calls: int) -> None:
    batches = side.batches(side.seed(), full=True)
    captured = Captured(side, buffer, batches, calls)
    replays, checked = (40, 10) if side.takes_turns else (10_000, 200)
    for number in range(replays):
        checks = number % checked == checked - 1
        if checks:
            low_latency_trip(side, buffer, "bf16", "plain")  # without a graph
            for old, new in zip(batches, side.batches(side.seed(), full=True), strict=True):
                old.x.copy_(new.x)
                old.topk.copy_(new.topk)
                old.weights.copy_(new.weights)
        captured.graph.replay()
        if checks:
            torch.cuda.synchronize()
            captured.check()


def masks(side: Side) -> None:
    """The last rank stays away from one call; the others go on without it."""
    lost = side.world - 1
    with side.low_latency(timeout_s=3.0, enable_shrink=True) as buffer:
        low_latency_trip(side, buffer, "bf16", "plain")
        status = torch.full((side.world,), 7, dtype=torch.int32, device="cuda")
        mine = side.batches(side.seed(), full=True)[side.rank]
        if side.rank != lost:
            for _ in range(2):
                buffer.low_latency_dispatch(
                    mine.x, mine.topk, side.size.tokens, side.experts, use_fp8=False
                )
            buffer.low_latency_query_mask_buffer(status)
            assert status.tolist() == [int(rank == lost) for rank in range(side.world)]
            buffer.low_latency_update_mask_buffer(lost, False)
            buffer.low_latency_query_mask_buffer(status)
            assert status.tolist() == [0] * side.world
            buffer.low_latency_update_mask_buffer(lost, True)
        else:  # whoever is masked masks the others, or it would wait for them
            for rank in range(lost):
                buffer.low_latency_update_mask_buffer(rank, True)
        torch.cuda.synchronize()


def dies(side: Side) -> None:
    """The last rank's process ends without a word."""
    lost = side.world - 1
    with side.low_latency(timeout_s=3.0) as buffer:
        low_latency_trip(side, buffer, "bf16", "plain")
        distributed.barrier()
        if side.rank == lost:
            sys.stdout.flush()
            os._exit(0)
        mine = side.batches(1, full=True)[side.rank]
        begin = time.monotonic()
        why = ""
        for _ in range(3):
            try:
                buffer.low_latency_dispatch(mine.x, mine.topk, side.size.tokens, side.experts)
                torch.cuda.synchronize()
            except SessionError as error:
                why = str(error)
        assert f"of rank {lost}" in why, why
        assert time.monotonic() - begin < 60


WORK = {w.__name__: w for w in (low_latency, throughput, elastic, graphs, masks, dies)}


def main() -> None:
    file, world, rank, gpu, work = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
    torch.cuda.set_device(gpu)
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", world_size=world, rank=rank,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    WORK[work](Side(world, rank, gpu, SIZE))
    print(f"{work}: all as it has to be", flush=True)
    if work not in ENDS_ALONE:
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
