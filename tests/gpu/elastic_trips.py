"""One rank's calls of an ElasticBuffer, and what must come of them; for ranks that are processes
(device_rank.py), and for one alone (test_elastic.py).

Every rank knows the batches of all, as in device_trips.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from epfabric import ElasticBuffer
from gpu.buffer_ranks import Batch
from gpu.device_trips import Side, same, scaled, wanted_rows

SMS = 16
BUSY_CYCLES = 20_000_000  # of the current stream, with what a call does not wait for


@dataclass(frozen=True)
class Way:
    """How a call is made."""

    fp8: bool = False
    expand: bool = False
    sync: bool | None = None
    aside: bool = False
    alignment: int = 1
    packed: bool = False  # scales are packed exponents, and come in columns
    columns: bool = False  # scales are given in columns
    events: bool = True  # with aside: the call waits for these, not for what is current

    def options(self, buffer: Any) -> dict[str, Any]:
        options: dict[str, Any] = {
            "async_with_compute_stream": self.aside,
            "do_expand": self.expand,
            "do_zero_padding": self.expand,
            "use_tma_aligned_col_major_sf": self.packed,
        }
        if self.aside:
            options["allocate_on_comm_stream"] = True
        if self.aside and self.events:
            options |= {
                "previous_event": buffer.capture(),
                "previous_event_before_epilogue": buffer.capture(),
            }
        return options


WAYS = [
    Way(),
    Way(fp8=True, aside=True, alignment=8),
    Way(sync=False),
    Way(fp8=True, packed=True, sync=False, aside=True),
    Way(expand=True),
    Way(expand=True, fp8=True, packed=True, alignment=128, aside=True),
    Way(expand=True, sync=False, alignment=8),
    Way(expand=True, sync=False, fp8=True, aside=True),
    Way(fp8=True, columns=True, sync=False, aside=True),
    Way(fp8=True, columns=True, packed=True, aside=True, events=False),
]


def made(side: Side, timeout_s: int = 30) -> Any:
    """A buffer that is to be destroyed."""
    size = side.size
    buffer = ElasticBuffer(
        side.group, num_max_tokens_per_rank=size.tokens, hidden=size.hidden, num_topk=size.topk,
        num_gpu_timeout_secs=timeout_s, explicitly_destroy=True,
    )  # fmt: skip
    assert (buffer.rank_idx, buffer.num_ranks) == (side.rank, side.world)
    assert buffer.get_logical_domain_size() == (1, side.world)
    return buffer


@contextmanager
def elastic(side: Side) -> Iterator[Any]:
    buffer = made(side)
    try:
        yield buffer
    finally:
        buffer.destroy()


def sent_by(batch: Batch, way: Way) -> tuple[Any, ...]:
    if not way.fp8:
        return (batch.x,)
    codes, scales = scaled(batch)
    if way.packed:  # any four bytes: they only travel
        scales = scales.view(torch.int32)
    return codes, scales


def given(inputs: tuple[Any, ...], way: Way) -> Any:
    """As a dispatch takes them."""
    if not way.fp8:
        return inputs[0]
    codes, scales = inputs
    return codes, scales.t().contiguous().t() if way.columns else scales


class Wanted:
    """What must come here: by source rank, in the order of its tokens."""

    def __init__(self, side: Side, batches: list[Batch]) -> None:
        self.side, self.batches = side, batches
        self.local = side.size.local
        self.topk = self.rows([b.topk for b in batches]) - side.rank * self.local
        self.here = (self.topk >= 0) & (self.topk < self.local)
        self.count = len(self.topk)
        self.each = [int((self.topk == e).any(dim=1).sum()) for e in range(self.local)]
        numbers = [
            torch.arange(len(b.x), device="cuda")[:, None] + rank * side.size.tokens
            for rank, b in enumerate(batches)
        ]
        self.tokens = self.rows(numbers)[:, 0]
        self.ends = torch.stack([side.goes_to(b, side.rank).sum() for b in batches]).cumsum(0)

    def rows(self, values: list[Any]) -> Any:
        return wanted_rows(self.side, self.batches, values)


def check_handle(wanted: Wanted, handle: Any, way: Way) -> None:
    side, alignment = wanted.side, way.alignment
    padded = [-(-count // alignment) * alignment for count in wanted.each]
    sums = torch.tensor(padded).cumsum(0)
    if way.expand:
        each = torch.tensor(wanted.each)
        assert handle.num_unaligned_recv_tokens_per_expert.tolist() == wanted.each
        sums = sums - torch.tensor(padded) + each
    assert handle.psum_num_recv_tokens_per_expert.tolist() == sums.tolist()
    assert handle.psum_num_recv_tokens_per_scaleup_rank.tolist() == wanted.ends.tolist()
    if way.sync is False:
        assert handle.num_recv_tokens == side.world * side.size.tokens
        assert handle.num_recv_tokens_per_expert_list == []
    else:
        assert handle.num_recv_tokens == wanted.count
        assert handle.num_recv_tokens_per_expert_list == padded
        assert handle.num_expanded_tokens == sum(padded)
    assert torch.equal(handle.recv_src_metadata[: wanted.count, 0].long(), wanted.tokens)


def check_rows(wanted: Wanted, values: list[Any], found: Any) -> None:
    assert same(found[: wanted.count], wanted.rows(values))


def check_places(wanted: Wanted, values: list[Any], found: Any, handle: Any, zero: bool) -> None:
    """Each row at the place of each of its experts here."""
    places = handle.recv_src_metadata[: wanted.count, 2:].long()
    assert torch.equal(places >= 0, wanted.here)
    rows = wanted.rows(values)
    ends = handle.psum_num_recv_tokens_per_expert.long()
    starts = ends - handle.num_unaligned_recv_tokens_per_expert
    for choice in range(places.shape[1]):
        here = wanted.here[:, choice]
        place, expert = places[here, choice], wanted.topk[here, choice]
        assert same(found[place], rows[here].contiguous())
        assert ((place >= starts[expert]) & (place < ends[expert])).all()
    taken = places[wanted.here]
    assert len(taken.unique()) == len(taken)
    padding = torch.ones(len(found), dtype=torch.bool, device="cuda")
    padding[taken] = False
    if zero:
        assert (found[padding].contiguous().view(torch.uint8) == 0).all()


def check_received(
    wanted: Wanted, inputs: list[tuple[Any, ...]], weights: list[Any], result: Any, way: Way
) -> None:
    out, experts, got, handle, _ = result
    outs = out if way.fp8 else (out,)
    for which, found in enumerate(outs):
        assert found.dtype == inputs[0][which].dtype
        if which == 1 and way.packed and len(found):
            assert found.stride() == (1, -(-len(found) // 4) * 4)
        values = [one[which] for one in inputs]
        if way.expand:
            check_places(wanted, values, found, handle, zero=True)
        else:
            check_rows(wanted, values, found)
    sent = torch.where(wanted.here, wanted.rows(weights), 0.0)
    if way.expand:
        assert experts is None
        places = handle.recv_src_metadata[: wanted.count, 2:].long()
        assert torch.equal(got[places.clamp(0)] * wanted.here, sent)
    else:
        assert torch.equal(experts[: wanted.count], torch.where(wanted.here, wanted.topk, -1))
        assert (experts[wanted.count :] == -1).all()
        assert torch.equal(got[: wanted.count], sent)


def elastic_trip(side: Side, buffer: Any, call: int) -> None:
    """Out, out again by the handle, and back."""
    way = WAYS[call % len(WAYS)]
    seed = side.seed()
    batches = side.batches(seed)
    mine, wanted = batches[side.rank], Wanted(side, batches)
    inputs = [sent_by(batch, way) for batch in batches]
    stats = torch.full((side.size.local,), 3, dtype=torch.int32, device="cuda")
    x, options = given(inputs[side.rank], way), way.options(buffer)
    if way.columns:
        torch.cuda._sleep(BUSY_CYCLES)
    result = buffer.dispatch(
        x, mine.topk, mine.weights, stats, num_experts=side.experts, num_sms=SMS,
        expert_alignment=way.alignment, do_cpu_sync=way.sync, do_handle_copy=call % 3 != 0,
        **options,
    )  # fmt: skip
    handle, event = result[3:]
    if way.aside:
        event.current_stream_wait()
    assert (handle.topk_idx is mine.topk) == (call % 3 == 0)
    assert stats.tolist() == [3 + count for count in wanted.each]
    check_handle(wanted, handle, way)
    check_received(wanted, inputs, [b.weights for b in batches], result, way)
    # Other values by the same routes.
    turned = [tuple(t.view(torch.uint8).flip(0).view(t.dtype) for t in one) for one in inputs]
    weights = [b.weights * 2 for b in batches]
    x_again, options = given(turned[side.rank], way), way.options(buffer)
    if way.columns:
        torch.cuda._sleep(BUSY_CYCLES)
    again = buffer.dispatch(x_again, topk_weights=weights[side.rank], handle=handle, **options)
    if way.aside:
        again[4].current_stream_wait()
    assert again[3] is handle
    check_received(wanted, turned, weights, again, way)
    bare = buffer.dispatch(x, handle=handle, do_expand=way.expand)
    assert bare[2] is None
    return_trip(side, buffer, way, wanted, result, seed)
    buffer.barrier(use_comm_stream=call % 2 == 0, with_cpu_sync=call % 4 == 0)


def return_trip(side: Side, buffer: Any, way: Way, wanted: Wanted, result: Any, seed: int) -> None:
    """Each row comes back times its rank's factor; with expand once for each of its experts."""
    handle, mine = result[3], wanted.batches[side.rank]
    factors = side.factors(seed, side.world)
    tokens = wanted.rows([b.x for b in wanted.batches])
    made = (tokens.float() * factors[side.rank]).bfloat16()
    total = handle.num_expanded_tokens if way.expand else handle.num_recv_tokens
    rows = torch.full((total, side.size.hidden), float("nan"), device="cuda").bfloat16()
    if way.expand:
        places = handle.recv_src_metadata[: wanted.count, 2:].long()
        for choice in range(places.shape[1]):
            here = wanted.here[:, choice]
            rows[places[here, choice]] = made[here]
    else:
        rows[: wanted.count] = made
    bias = (mine.x * 2, mine.x) if seed % 2 else None
    options = {"async_with_compute_stream": way.aside}
    if way.aside:
        options["previous_event"] = buffer.capture()
    combined, weights, event = buffer.combine(
        rows, handle, topk_weights=result[2], bias=bias, **options
    )
    if way.aside:
        event.current_stream_wait()
    total = torch.zeros(mine.x.shape, dtype=torch.float64, device="cuda")
    for one in bias or ():
        total += one.double()
    size = total.abs()
    for rank in range(side.world):
        named = (mine.topk // side.size.local == rank) & (mine.topk >= 0)
        times = named.sum(dim=1) if way.expand else named.any(dim=1)
        part = (mine.x.float() * factors[rank]).bfloat16().double() * times[:, None]
        total, size = total + part, size + part.abs()
    # With expand a rank's sum is rounded once, the sum of the ranks again.
    assert ((combined.double() - total).abs() <= size * 2.0**-7 + 1e-30).all()
    wanted_weights = torch.where(mine.topk >= 0, mine.weights, 0.0)
    assert torch.equal(weights, wanted_weights)
