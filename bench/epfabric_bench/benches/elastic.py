"""ElasticBuffer's dispatch and combine on torch's tensors, two ranks that share a GPU, beside a
device copy.

Both run from a CUDA graph of each rank, so that nothing waits on the host; rows come by source
rank, or by expert. What came is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..run import Bench, Run
from ..series import LESS, OURS, Line
from .buffer import CALLS, COPY, EXPERTS, HIDDEN, RANKS, TOPK, copy_seconds, missing

TOKENS = (128, 512, 4096)
SMS = (20, 64)  # of each rank
LAYOUTS = {"by rank": False, "by expert": True}


def measure(run: Run) -> list[Line]:
    warm_up()
    lines: list[Line] = []
    for sms in SMS[:1] if run.small else SMS:
        for tokens in (16,) if run.small else TOKENS:
            for layout in LAYOUTS:
                run.say(f"{tokens} tokens, {sms} multiprocessors a rank, {layout}")
                lines += case(run, tokens, sms, layout)
    return lines


@contextmanager
def elastic(world: int, tokens: int) -> Iterator[Any]:
    """Ranks, with a buffer each."""
    from epfabric import ElasticBuffer
    from gpu.buffer_ranks import Ranks

    ranks = Ranks(world)

    def make(rank: int) -> Any:
        return ElasticBuffer(
            None, num_max_tokens_per_rank=tokens, hidden=HIDDEN, num_topk=TOPK,
            num_gpu_timeout_secs=20, explicitly_destroy=True, comm=ranks.comms[rank],
        )  # fmt: skip

    ranks.buffers = ranks.each(make)
    try:
        yield ranks
    finally:
        ranks.each(lambda rank: ranks.buffers[rank].destroy())
        ranks.close()


def warm_up() -> None:
    """Loads torch's kernels, which the driver does not while ranks wait for each other."""
    import torch
    from gpu.buffer_ranks import Batch

    with elastic(1, 16) as ranks:
        batch = Batch.random(0, 16, HIDDEN, EXPERTS, TOPK)
        torch.cuda.synchronize()
        for expand in LAYOUTS.values():
            ranks.each(lambda _, expand=expand: call(ranks.buffers[0], batch, SMS[0], expand))


def call(buffer: Any, batch: Any, sms: int, expand: bool, between: Any = None) -> tuple[Any, Any]:
    """What came, and what came back; between: called after the dispatch."""
    out, _, _, handle, _ = buffer.dispatch(
        batch.x, batch.topk, batch.weights, num_experts=EXPERTS, num_sms=sms, do_cpu_sync=False,
        do_handle_copy=False, do_expand=expand,
    )  # fmt: skip
    if between is not None:
        between()
    combined, _, _ = buffer.combine(out, handle)
    return out, combined


def case(run: Run, tokens: int, sms: int, layout: str) -> Iterator[Line]:
    import torch
    from gpu.buffer_ranks import Batch

    expand, local = LAYOUTS[layout], EXPERTS // RANKS
    with elastic(RANKS, tokens) as ranks:
        batches = [Batch.random(rank, tokens, HIDDEN, EXPERTS, TOPK) for rank in range(RANKS)]
        torch.cuda.synchronize()
        sides = [Side(ranks, rank, batches[rank], sms, expand) for rank in range(RANKS)]
        ranks.each(lambda rank: sides[rank].graph.replay())
        check(sides, batches, expand)
        flags = [
            torch.stack([(b.topk // local == r).any(dim=1) for r in range(RANKS)], dim=1)
            for b in batches
        ]
        stay = sum(int(flag[:, rank].sum()) for rank, flag in enumerate(flags))
        go = sum(int(flag.sum()) for flag in flags) - stay
        # As `buffer` counts; by expert each row is read there and written for each of its experts.
        spread = 2 * sum(int((b.topk >= 0).sum()) for b in batches) if expand else 0
        moved = 2 * HIDDEN * (RANKS * tokens + stay + 3 * go + spread)
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
                text = f"{tokens} tokens, {sms} SMs a rank, {layout}, {name}"
                yield Line(text, "seconds", "s", LESS, OURS, number, True, ours)
                yield Line(text, "seconds", "s", LESS, COPY, number, True, copies)


class Side:
    """A rank's graph of dispatches and combines, with events between."""

    def __init__(self, ranks: Any, rank: int, batch: Any, sms: int, expand: bool) -> None:
        import torch

        buffer, stream = ranks.buffers[rank], ranks.streams[rank]
        self.graph = torch.cuda.CUDAGraph()
        self._events = [
            torch.cuda.Event(enable_timing=True, external=True) for _ in range(3 * CALLS)
        ]
        events = iter(self._events)

        def mark() -> None:
            next(events).record(stream)

        with torch.cuda.graph(self.graph, stream=stream):
            for _ in range(CALLS):
                mark()
                self.received, self.combined = call(buffer, batch, sms, expand, between=mark)
                mark()

    def seconds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of dispatches, of combines; the first of each does not count."""
        triples = [self._events[3 * i : 3 * i + 3] for i in range(1, CALLS)]
        return (
            tuple(a.elapsed_time(b) / 1e3 for a, b, _ in triples),
            tuple(b.elapsed_time(c) / 1e3 for _, b, c in triples),
        )


def check(sides: list[Side], batches: list[Any], expand: bool) -> None:
    """Each row comes back as often as it was sent; by rank they come whole and in order."""
    import torch

    local = EXPERTS // RANKS
    for rank, side in enumerate(sides):
        if not expand:
            wanted = torch.cat([b.x[(b.topk // local == rank).any(dim=1)] for b in batches])
            assert torch.equal(side.received[: len(wanted)], wanted)
        topk = batches[rank].topk
        here = [topk // local == one for one in range(RANKS)]
        times = sum((one.sum(dim=1) if expand else one.any(dim=1).long()) for one in here)
        total = batches[rank].x.double() * times[:, None]
        assert ((side.combined.double() - total).abs() <= total.abs() * 2.0**-7).all()


BENCH = Bench(
    "elastic",
    "ElasticBuffer's dispatch and combine, two ranks on one GPU",
    measure,
    missing=missing,
    native=False,
)
