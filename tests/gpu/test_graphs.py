"""Buffer's low-latency calls in CUDA graphs, replayed often with other tokens each time, against
float64. The kernels alone: test_low_latency.py; high throughput: test_throughput.py."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")

from gpu.buffer_ranks import (  # noqa: E402
    Batch,
    Ranks,
    check_combined,
    check_received,
    finish,
    options_of,
    reserve,
)
from gpu.buffer_trips import (  # noqa: E402
    EXPERTS,
    HIDDEN,
    KINDS,
    TOKENS,
    TOPK,
    low_latency,
    round_trip,
)

WORLD, LOCAL = 2, EXPERTS // 2
REPLAYS, CHECKED, BATCHES = 10_000, 100, 6


@dataclass(frozen=True)
class Form:
    kind: str
    way: str
    zero_copy: bool = False
    masks: bool = False  # with the calls that ask for masks and change them, and the one that waits


FORMS = [
    Form("bf16", "plain", masks=True),
    Form("fp8", "hook"),
    Form("powers", "async"),
    Form("ue8m0", "hook", zero_copy=True),
]


class Side:
    """A rank's graph, the batches that its replays take in turn, and what they bring."""

    def __init__(self, ranks: Ranks, rank: int, form: Form, seed: int) -> None:
        self.buffer, self.stream = ranks.buffers[rank], ranks.streams[rank]
        self.rank, self.form = rank, form
        self.stored = [
            Batch.random(seed + 10 * number + rank, TOKENS, HIDDEN, EXPERTS, TOPK)
            for number in range(BATCHES)
        ]
        self.stored[1].topk.fill_(-1)  # sends nothing
        experts = torch.arange(EXPERTS, device="cuda")
        self.counts = [
            (one.topk[:, :, None] == experts).sum(dim=(0, 1)).cpu().numpy() for one in self.stored
        ]
        self.now = 0  # the number of the last replay's batch
        self.batch = Batch(*(value.clone() for value in vars(self.stored[0]).values()))
        shape = (LOCAL, WORLD * TOKENS, HIDDEN)
        self.made = torch.randn(shape, device="cuda").bfloat16()
        self.combined = torch.empty_like(self.batch.x)
        self.sums = torch.zeros(LOCAL, dtype=torch.int32, device="cuda")
        self.waits = torch.zeros(WORLD, dtype=torch.int64, device="cuda")
        self.masks = torch.zeros(WORLD, dtype=torch.int32, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        self.result: Any = None

    def capture(self, calls: int) -> None:
        with torch.cuda.graph(self.graph, stream=self.stream):
            for _ in range(calls):
                self._call()

    def _call(self) -> None:
        buffer, batch, way = self.buffer, self.batch, self.form.way
        if self.form.masks:
            buffer.low_latency_query_mask_buffer(self.masks)
            buffer.low_latency_update_mask_buffer(1 - self.rank, False)
            buffer.low_latency_clean_mask_buffer()
        self.result = finish(
            buffer.low_latency_dispatch(
                batch.x, batch.topk, TOKENS, EXPERTS, self.sums, self.waits,
                **KINDS[self.form.kind], **options_of(way),
            ),
            way,
        )  # fmt: skip
        rows = self.made
        if self.form.zero_copy:
            rows = buffer.get_next_low_latency_combine_buffer(self.result[2])
            rows.copy_(self.made)
        finish(
            buffer.low_latency_combine(
                rows, batch.topk, batch.weights, self.result[2], out=self.combined,
                zero_copy=self.form.zero_copy, combine_wait_recv_cost_stats=self.waits,
                **options_of(way),
            ),
            way,
        )  # fmt: skip
        if self.form.masks:
            buffer.clean_low_latency_buffer(TOKENS, HIDDEN, EXPERTS)

    def replay(self, number: int) -> None:
        """Copies on the stream, without a kernel of torch."""
        self.now = number
        with torch.cuda.stream(self.stream):
            pairs = zip(vars(self.batch).values(), vars(self.stored[number]).values(), strict=True)
            for target, source in pairs:
                target.copy_(source)
            self.graph.replay()

    def poison(self) -> None:
        out = self.result[0]
        rows, scales = out if isinstance(out, tuple) else (out, None)
        rows.view(torch.uint8).fill_(0xFF)
        if scales is not None:
            scales.fill_(-1 if scales.dtype == torch.int32 else float("nan"))
        self.result[2].memory.fill_(-1)
        self.combined.fill_(float("nan"))
        self.masks.fill_(7)


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.kind}-{f.way}")
def test_a_graph_is_replayed_with_changing_routing(form: Form, calls: int) -> None:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    with low_latency(enable_shrink=form.masks) as ranks:
        for _ in range(2):  # makes both of the buffers that zero copy takes in turn
            round_trip(ranks, form.kind, form.way, form.zero_copy)
        sides = [Side(ranks, rank, form, seed) for rank in range(WORLD)]
        for side in sides:  # one after the other: only one thread may capture at a time
            side.capture(calls)
        ranks.each(lambda _: reserve())  # a capture gives torch's spare memory back
        looks = list(range(CHECKED - 1, REPLAYS, CHECKED))
        looks += rng.integers(0, REPLAYS, 20).tolist()
        total = np.zeros(EXPERTS, np.int64)
        for replay in range(REPLAYS):
            if replay in looks:
                torch.cuda.synchronize()
                for side in sides:
                    side.poison()
                torch.cuda.synchronize()
            for side in sides:
                side.replay(int(rng.integers(BATCHES)))
                total += calls * side.counts[side.now]
            if replay in looks:
                torch.cuda.synchronize()
                check(sides, total)
            if replay in looks[::5]:
                round_trip(ranks, form.kind, form.way, form.zero_copy)  # without a graph
        torch.cuda.synchronize()


def check(sides: list[Side], total: np.ndarray) -> None:
    """total: tokens of each expert, of all replays so far."""
    batches = [side.stored[side.now] for side in sides]
    received = [side.result for side in sides]
    check_received(batches, received, EXPERTS)
    combined = [side.combined for side in sides]
    check_combined(batches, received, [side.made for side in sides], combined, EXPERTS)
    for side in sides:
        assert side.sums.tolist() == total[LOCAL * side.rank : LOCAL * (side.rank + 1)].tolist()
        assert (side.waits > 0).all()
        assert not side.form.masks or side.masks.tolist() == [0] * WORLD
