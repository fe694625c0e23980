"""One rank's calls of a Buffer, and what must come of them; for ranks that are processes.

Every rank makes the batches of all, from a seed that they share, so that each can say alone what
it must get. An expert, or a rank, multiplies what it gets with a factor that all know.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as distributed
from epfabric import Buffer
from epfabric.buffer import Config
from gpu.buffer_ranks import Batch, bounded, check_rows_of_experts, finish, options_of
from gpu.buffer_trips import KINDS

CONFIG = Config(16)


@dataclass(frozen=True)
class Size:
    """tokens: at most, of a rank. local: experts of a rank."""

    tokens: int
    hidden: int
    local: int
    topk: int


class Side:
    """This rank, and what all ranks know alike."""

    def __init__(self, world: int, rank: int, gpu: int, size: Size) -> None:
        self.world, self.rank, self.size, self.experts = world, rank, size, size.local * world
        self.group = distributed.group.WORLD
        gpus: list[Any] = [None] * world
        distributed.all_gather_object(gpus, str(torch.cuda.get_device_properties(gpu).uuid))
        # Processes that share a GPU take turns, of milliseconds each; not as clients of MPS.
        shared = len(set(gpus)) < world
        self.takes_turns = shared and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ

    def agreed(self, value: Any) -> Any:
        """That of rank 0."""
        values = [value]
        distributed.broadcast_object_list(values)
        return values[0]

    def seed(self) -> int:
        seed = int(self.agreed(secrets.randbits(31)))
        print(f"seed {seed}", flush=True)
        return seed

    def batches(self, seed: int, full: bool = False) -> list[Batch]:
        """Of all ranks; one has all tokens that there may be, now and then one has none."""
        tokens = self.size.tokens
        counts = [(seed >> 3 * rank) % (tokens + 1) for rank in range(self.world)]
        counts[seed % self.world] = tokens
        if seed % 3 == 0 and self.world > 1:
            counts[(seed + 1) % self.world] = 0
        if full:
            counts = [tokens] * self.world
        return [
            Batch.random(seed + rank, count, self.size.hidden, self.experts, self.size.topk)
            for rank, count in enumerate(counts)
        ]

    def factors(self, seed: int, count: int) -> Any:
        """What an expert, or a rank, multiplies tokens with."""
        rng = torch.Generator(device="cuda").manual_seed(seed)
        return torch.rand(count, device="cuda", generator=rng) + 0.5

    @contextmanager
    def buffer(self, timeout_s: float = 30.0, **options: Any) -> Iterator[Any]:
        buffer = bounded(timeout_s)(self.group, explicitly_destroy=True, **options)
        assert (buffer.rank, buffer.group_size) == (self.rank, self.world)
        yield buffer
        buffer.destroy()

    def low_latency(self, **options: Any) -> Any:
        size = Buffer.get_low_latency_rdma_size_hint(
            self.size.tokens, self.size.hidden, self.world, self.experts
        )
        return self.buffer(num_rdma_bytes=size, low_latency_mode=True, **options)

    def throughput(self, config: Config = CONFIG) -> Any:
        nbytes = config.get_nvl_buffer_size_hint(2 * self.size.hidden, self.world)
        return self.buffer(num_nvl_bytes=nbytes)

    def goes_to(self, batch: Batch, rank: int) -> Any:
        return (batch.topk // self.size.local == rank).any(dim=1)

    def expert_rows(self, fill: float) -> Any:
        size = self.size
        shape = (size.local, self.world * size.tokens, size.hidden)
        return torch.full(shape, fill, dtype=torch.bfloat16, device="cuda")


def made_by_experts(side: Side, batches: list[Batch], handle: Any, factors: Any, out: Any) -> None:
    """Fills out [local experts, rows, hidden]: each token times its expert's factor."""
    local = side.size.local
    out.fill_(float("nan"))
    for expert in range(local):
        for source, batch in enumerate(batches):
            word = int(handle[1][expert, source])
            rows = slice(word >> 32, (word >> 32) + (word & 0xFFFFFFFF))
            tokens = handle[0][expert, rows].long()
            factor = factors[side.rank * local + expert]
            out[expert, rows] = (batch.x[tokens].float() * factor).bfloat16()


def check_weighted(batch: Batch, factors: Any, combined: Any) -> None:
    chosen = batch.topk.clamp(0)
    weights = torch.where(batch.topk >= 0, batch.weights, 0.0).double()
    wanted = torch.zeros(batch.x.shape, dtype=torch.float64, device="cuda")
    size = torch.zeros_like(wanted)
    for k in range(batch.topk.shape[1]):
        part = (batch.x.float() * factors[chosen[:, k : k + 1]]).bfloat16().double()
        wanted += weights[:, k : k + 1] * part
        size += (weights[:, k : k + 1] * part).abs()
    assert ((combined.double() - wanted).abs() <= size * 2.0**-7 + 1e-30).all()


def low_latency_trip(
    side: Side, buffer: Any, kind: str, way: str, *, zero_copy: bool = False, full: bool = False,
    seed: int | None = None, lost: int | None = None,
) -> None:  # fmt: skip
    """seed: what the ranks agreed on before. lost: a rank that is masked."""
    seed = side.seed() if seed is None else seed
    batches, factors = side.batches(seed, full), side.factors(seed, side.experts)
    mine = batches[side.rank]
    result = buffer.low_latency_dispatch(
        mine.x, mine.topk, side.size.tokens, side.experts, **KINDS[kind], **options_of(way)
    )
    finish(result, way)
    if lost is not None:
        batches[lost] = Batch(*(value[:0] for value in vars(batches[lost]).values()))
    check_rows_of_experts(batches, side.rank, result, side.experts)
    handle = result[2]
    rows = side.expert_rows(float("nan"))
    if zero_copy:
        rows = buffer.get_next_low_latency_combine_buffer(handle)
    made_by_experts(side, batches, handle, factors, rows)
    out = torch.full_like(mine.x, float("nan"))
    finish(
        buffer.low_latency_combine(
            rows, mine.topk, mine.weights, handle, zero_copy=zero_copy, out=out, **options_of(way)
        ),
        way,
    )
    if lost is not None:
        topk = torch.where(mine.topk // side.size.local == lost, -1, mine.topk)
        mine = replace(mine, topk=topk)
    check_weighted(mine, factors, out)


def scaled(batch: Batch) -> tuple[Any, Any]:
    groups = batch.x.float().view(len(batch.x), batch.x.shape[1] // 128, 128)
    scales = groups.abs().amax(dim=2).clamp(1e-4) / 448
    codes = (groups / scales[:, :, None]).to(torch.float8_e4m3fn).view(batch.x.shape)
    return codes, scales


def same(one: Any, other: Any) -> bool:
    return bool(torch.equal(one.contiguous().view(torch.uint8), other.view(torch.uint8)))


def wanted_rows(side: Side, batches: list[Batch], values: list[Any]) -> Any:
    """What must come here of what each rank has: by source, in the order of its tokens."""
    pairs = zip(batches, values, strict=True)
    return torch.cat([v[side.goes_to(b, side.rank)] for b, v in pairs]).contiguous()


def throughput_trip(
    side: Side, buffer: Any, call: int, config: Config = CONFIG, *, full: bool = False
) -> None:
    seed = side.seed()
    batches, factors = side.batches(seed, full), side.factors(seed, side.world)
    fp8, aside, worst = call % 2 == 1, call % 3 == 1, side.size.tokens * side.world * (call % 2)
    mine, inputs = batches[side.rank], [scaled(b) if fp8 else (b.x,) for b in batches]
    by_rank, _, by_expert, flags, event = buffer.get_dispatch_layout(
        mine.topk, side.experts, async_finish=aside
    )
    for rank in range(side.world):
        assert torch.equal(flags[:, rank], side.goes_to(mine, rank))
    result = buffer.dispatch(
        inputs[side.rank] if fp8 else mine.x, num_tokens_per_rank=by_rank, is_token_in_rank=flags,
        num_tokens_per_expert=by_expert, topk_idx=mine.topk, topk_weights=mine.weights,
        num_worst_tokens=worst, config=config, previous_event=event, async_finish=aside,
    )  # fmt: skip
    if aside:
        result[5].current_stream_wait()
    outs = result[0] if fp8 else (result[0],)
    for which, found in enumerate(outs):
        wanted = wanted_rows(side, batches, [one[which] for one in inputs])
        assert same(found[: len(wanted)], wanted)
    count = len(wanted)
    local = side.size.local
    first = side.rank * local
    named = wanted_rows(side, batches, [b.topk for b in batches]) - first
    here = (named >= 0) & (named < local)
    assert torch.equal(result[1][:count], torch.where(here, named, -1))
    assert (result[1][count:] == -1).all()
    sent = wanted_rows(side, batches, [b.weights for b in batches])
    assert torch.equal(result[2][:count], torch.where(here, sent, 0.0))
    if not worst:
        assert result[3] == [int((named == e).any(dim=1).sum()) for e in range(local)]
    handle = result[4]
    if call % 2 == 0:  # again, by the handle
        values = [torch.flip(b.x, dims=(1,)).contiguous() for b in batches]
        out, *nothing, _ = buffer.dispatch(values[side.rank], handle=handle, config=config)
        assert nothing == [None] * 4
        assert same(out[:count], wanted_rows(side, batches, values))
    rows = torch.full((len(result[1]), mine.x.shape[1]), float("nan"), device="cuda").bfloat16()
    tokens = wanted_rows(side, batches, [b.x for b in batches])
    rows[:count] = (tokens.float() * factors[side.rank]).bfloat16()
    bias = (mine.x * 2, None)[call % 2]
    combined, weights, event = buffer.combine(
        rows, handle, topk_weights=result[2], bias=bias, config=config, async_finish=aside
    )
    if aside:
        event.current_stream_wait()
    check_sums(side, mine, factors, combined, weights, bias)


def check_sums(
    side: Side, mine: Batch, factors: Any, combined: Any, weights: Any, bias: Any
) -> None:
    wanted = torch.zeros(mine.x.shape, dtype=torch.float64, device="cuda")
    if bias is not None:
        wanted += bias.double()
    size = wanted.abs()
    for rank in range(side.world):
        part = (mine.x.float() * factors[rank]).bfloat16().double()
        part *= side.goes_to(mine, rank)[:, None]
        wanted, size = wanted + part, size + part.abs()
    assert ((combined.double() - wanted).abs() <= size * 2.0**-7 + 1e-30).all()
    assert torch.equal(weights, torch.where(mine.topk >= 0, mine.weights, 0.0))
