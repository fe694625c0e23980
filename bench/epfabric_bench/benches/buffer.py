"""Buffer's calls on torch's tensors, two ranks that share a GPU, beside a device copy.

High-throughput dispatch and combine run from a CUDA graph of each rank; of low-latency calls only
what they cost the host is measured here (`low_latency` has the kernels). What came is compared.
"""

from __future__ import annotations

import importlib.util
import itertools
import shutil
import time
from collections.abc import Iterator
from typing import Any

from ..quantiles import median
from ..run import Bench, Run
from ..series import LESS, OURS, Limit, Line

HIDDEN, EXPERTS, TOPK, RANKS = 7168, 64, 8, 2
TOKENS = (128, 512, 4096)
SMS = (20, 64)  # of each rank
COPY = "device copy of the bytes that are read and written"
CALLS = 8  # in a graph
HOST_CALLS = 30


def measure(run: Run) -> list[Line]:
    lines: list[Line] = []
    for sms in SMS[:1] if run.small else SMS:
        for tokens in (16,) if run.small else TOKENS:
            run.say(f"{tokens} tokens, {sms} multiprocessors a rank")
            lines += throughput(run, tokens, sms)
    lines += host(run)
    return lines


def throughput(run: Run, tokens: int, sms: int) -> Iterator[Line]:
    import torch
    from epfabric.buffer import Config
    from gpu.buffer_ranks import Batch, buffers

    config = Config(sms)
    size = config.get_nvl_buffer_size_hint(2 * HIDDEN, RANKS)
    with buffers(RANKS, num_nvl_bytes=size) as ranks:
        batches = [Batch.random(rank, tokens, HIDDEN, EXPERTS, TOPK) for rank in range(RANKS)]
        torch.cuda.synchronize()
        sides = [Side(ranks, rank, batches[rank], config) for rank in range(RANKS)]
        ranks.each(lambda rank: sides[rank].graph.replay())
        check(sides, batches)
        stay = sum(int(side.flags[:, rank].sum()) for rank, side in enumerate(sides))
        go = sum(int(side.flags.sum()) for side in sides) - stay
        # A token is read once. What stays is written; what goes is written to its ring, read there
        # and written; sums read and write likewise.
        moved = 2 * HIDDEN * (RANKS * tokens + stay + 3 * go)
        source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        for number in range(-1, run.rounds):
            ranks.each(lambda rank: sides[rank].graph.replay())
            times = [side.seconds() for side in sides]
            copies = copy_seconds(source, target)
            if number < 0:
                continue
            for which, name in enumerate(("dispatch", "combine")):
                ours = tuple(map(max, *(one[which] for one in times)))
                case = f"{tokens} tokens, {sms} SMs a rank, {name}"
                yield Line(case, "seconds", "s", LESS, OURS, number, True, ours)
                yield Line(case, "seconds", "s", LESS, COPY, number, True, copies)


class Side:
    """A rank's graph of dispatches and combines, with events between."""

    def __init__(self, ranks: Any, rank: int, batch: Any, config: Any, calls: int = CALLS) -> None:
        import torch

        buffer, stream = ranks.buffers[rank], ranks.streams[rank]
        self.graph = torch.cuda.CUDAGraph()
        self._events = [
            torch.cuda.Event(enable_timing=True, external=True) for _ in range(3 * calls)
        ]
        events = iter(self._events)
        with torch.cuda.graph(self.graph, stream=stream):
            by_rank, _, by_expert, self.flags, _ = buffer.get_dispatch_layout(batch.topk, EXPERTS)
            for _ in range(calls):
                next(events).record(stream)
                self.received = buffer.dispatch(
                    batch.x, num_tokens_per_rank=by_rank, is_token_in_rank=self.flags,
                    num_tokens_per_expert=by_expert, topk_idx=batch.topk,
                    topk_weights=batch.weights, num_worst_tokens=ranks.world * len(batch.x),
                    config=config,
                )  # fmt: skip
                next(events).record(stream)
                self.combined = buffer.combine(self.received[0], self.received[4], config=config)
                next(events).record(stream)

    def seconds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of dispatches, of combines; the first of each does not count."""
        triples = [self._events[i : i + 3] for i in range(3, len(self._events), 3)]
        return (
            tuple(a.elapsed_time(b) / 1e3 for a, b, _ in triples),
            tuple(b.elapsed_time(c) / 1e3 for _, b, c in triples),
        )


def check(sides: list[Side], batches: list[Any]) -> None:
    """Rows arrive whole and in order; each comes back as often as it was sent."""
    import torch

    for rank, side in enumerate(sides):
        wanted = torch.cat([b.x[s.flags[:, rank]] for b, s in zip(batches, sides, strict=True)])
        assert torch.equal(side.received[0][: len(wanted)], wanted)
        times = side.flags.sum(dim=1, keepdim=True)
        total = batches[rank].x.double() * times
        assert ((side.combined[0].double() - total).abs() <= total.abs() * 2.0**-7).all()


def copy_seconds(source: Any, target: Any) -> tuple[float, ...]:
    import torch

    events = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]
    stream = torch.cuda.current_stream()
    for event in events:
        event.record(stream)
        target.copy_(source)
    stream.synchronize()
    pairs = itertools.pairwise(events[1:])
    return tuple(one.elapsed_time(two) / 1e3 for one, two in pairs)


def host(run: Run) -> Iterator[Line]:
    """What a low-latency call costs the host, from torch's tensors to the launch."""
    import torch
    from epfabric import Buffer
    from gpu.buffer_ranks import Batch, buffers

    tokens = 128
    size = Buffer.get_low_latency_rdma_size_hint(tokens, HIDDEN, 1, EXPERTS)
    with buffers(1, num_rdma_bytes=size, low_latency_mode=True) as ranks:
        batch = Batch.random(0, tokens, HIDDEN, EXPERTS, TOPK)
        torch.cuda.synchronize()

        def calls(_: int) -> list[tuple[float, float]]:
            buffer, times = ranks.buffers[0], []
            rows = torch.zeros((EXPERTS, tokens, HIDDEN), dtype=torch.bfloat16, device="cuda")
            for _ in range(HOST_CALLS):
                begin = time.perf_counter()
                out = buffer.low_latency_dispatch(batch.x, batch.topk, tokens, EXPERTS)
                middle = time.perf_counter()
                buffer.low_latency_combine(rows, batch.topk, batch.weights, out[2])
                end = time.perf_counter()
                times.append((middle - begin, end - middle))
                torch.cuda.current_stream().synchronize()
            return times

        for number in range(-1, run.rounds):
            times = ranks.each(calls)[0]
            if number < 0:
                continue
            for which, name in enumerate(("low-latency dispatch", "low-latency combine")):
                value = median([one[which] for one in times])
                metric = "host_seconds_a_call"
                yield Line(name, metric, "s", LESS, OURS, number, True, (value,))


def missing() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU here"
    return None if importlib.util.find_spec("torch") else "no torch here"


BENCH = Bench(
    "buffer",
    "Buffer's dispatch and combine, two ranks on one GPU; a low-latency call on the host",
    measure,
    (Limit("host_seconds_a_call", None, 20e-6),),
    missing,
)
