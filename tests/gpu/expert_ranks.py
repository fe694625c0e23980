"""Ranks that share one GPU, their arrays, and what numpy says that must come out; for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from cuda.bindings import driver
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.low_latency import (
    RECEIVE,
    SEND,
    CombineCall,
    DispatchCall,
    LowLatency,
)
from epfabric.cuda.rank import checked
from epfabric.cuda.window import SCALE_CHANNELS, Shape
from gpu.at_once import MUCH_BYTES, at_once

POISON = 0xFF  # NaN in every type used here, -1 as an integer
RECEIPT_WORDS = 4
SUMMED_CHANNELS = 512  # of a row that a thread checks


def bf16_of(values: np.ndarray) -> np.ndarray:
    """Rounded to nearest, as uint16."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def float_of(bf16: np.ndarray) -> np.ndarray:
    return (bf16.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def _fp8_values() -> np.ndarray:
    """Of each code: e4m3 without infinities."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, (codes & 7).astype(float)
    size = np.where(exponent == 0, fraction * 2.0**-9, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    size = np.where(codes & 0x7F == 0x7F, np.nan, size)
    return np.where(codes & 0x80, -size, size)


FP8_VALUES = _fp8_values()


def float_of_fp8(codes: np.ndarray) -> np.ndarray:
    found: np.ndarray = FP8_VALUES[codes]
    return found


class Array:
    """In GPU memory; poisoned at first."""

    def __init__(self, shape: tuple[int, ...], kind: type[np.generic]) -> None:
        self.shape, self.kind = shape, np.dtype(kind)
        self.nbytes = max(int(np.prod(shape)) * self.kind.itemsize, 16)
        self.address = int(checked(driver.cuMemAlloc(self.nbytes)))
        self.poison()

    def poison(self) -> None:
        checked(driver.cuMemsetD8(self.address, POISON, self.nbytes))

    def write(self, values: np.ndarray) -> None:
        """Fills the beginning."""
        flat = np.ascontiguousarray(values, dtype=self.kind)
        if flat.nbytes:
            checked(driver.cuMemcpyHtoD(self.address, flat.ctypes.data, flat.nbytes))

    def read(self) -> np.ndarray:
        return self.read_part((), self.shape)

    def read_rows(self, first: int, count: int) -> np.ndarray:
        """Rows of [first][...][hidden], from its beginning."""
        return self.read_part((first,), (count, *self.shape[2:]))

    def write_rows(self, first: int, rows: np.ndarray) -> None:
        flat = np.ascontiguousarray(rows, dtype=self.kind)
        if flat.nbytes:
            checked(driver.cuMemcpyHtoD(self._place((first,)), flat.ctypes.data, flat.nbytes))

    def read_part(self, place: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
        out = np.empty(shape, self.kind)
        if out.nbytes:
            checked(driver.cuMemcpyDtoH(out.ctypes.data, self._place(place), out.nbytes))
        return out

    def _place(self, place: tuple[int, ...]) -> int:
        each = int(np.prod(self.shape[1:])) * self.kind.itemsize
        return self.address + (place[0] * each if place else 0)

    def close(self) -> None:
        checked(driver.cuMemFree(self.address))


@dataclass(frozen=True)
class Batch:
    """What one rank dispatches, and the weights that it combines with."""

    tokens: np.ndarray  # [count, hidden] uint16: bfloat16
    topk: np.ndarray  # [count, k] int64
    weights: np.ndarray  # [count, k] float32

    @staticmethod
    def random(rng: np.random.Generator, shape: Shape, count: int, none: float = 0.1) -> Batch:
        order = rng.random((count, shape.experts)).argsort(axis=1)[:, : shape.topk]
        topk = np.where(rng.random(order.shape) < none, -1, order).astype(np.int64)
        scale = 2.0 ** rng.integers(-8, 8, (count, 1))
        return Batch(
            bf16_of(rng.standard_normal((count, shape.hidden)) * scale),
            topk,
            rng.random(topk.shape, np.float32),
        )


class Rank:
    """One rank; kinds: of a set of arrays for each batch that is under way, whether in 8 bits."""

    def __init__(self, end: LowLatency, kinds: Sequence[bool]) -> None:
        self.end = end
        self.stream = checked(driver.cuStreamCreate(1))
        self.sets = [ArraySet(end.shape, fp8) for fp8 in kinds]

    def dispatch(self, batch: Batch | None, which: int = 0, phases: int = SEND | RECEIVE,
                 power: bool = False, packed: bool = False) -> None:  # fmt: skip
        arrays = self.sets[which]
        if batch is not None:
            arrays.take(batch)
        call = arrays.dispatch_call(phases)
        call.power_scales, call.byte_scales = int(power), int(packed)
        self.end.dispatch(call, fp8=arrays.fp8, stream=int(self.stream))

    def combine(self, which: int = 0, phases: int = SEND | RECEIVE) -> None:
        self.end.combine(self.sets[which].combine_call(phases), stream=int(self.stream))

    def sync(self) -> None:
        checked(driver.cuStreamSynchronize(self.stream))

    def reshape(self, shape: Shape) -> None:
        """Launches what its end does before calls of another shape; there are arrays for it."""
        self.end.reshape(shape, stream=int(self.stream))

    def remake(self, shape: Shape) -> None:
        """Arrays for calls of that shape; when no kernel runs."""
        kinds = [arrays.fp8 for arrays in self.sets]
        for arrays in self.sets:
            arrays.close()
        self.sets = [ArraySet(shape, fp8) for fp8 in kinds]

    def close(self) -> None:
        for arrays in self.sets:
            arrays.close()
        checked(driver.cuStreamDestroy(self.stream))
        self.end.close()


class ArraySet:
    """Inputs and outputs of one dispatch and its combine."""

    def __init__(self, shape: Shape, fp8: bool) -> None:
        local, rows = shape.local_experts, shape.rows
        groups = shape.hidden // SCALE_CHANNELS
        self.shape, self.fp8 = shape, fp8
        self.batch: Batch | None = None
        self.early = False  # weights go with the tokens
        self.tokens = Array((shape.tokens, shape.hidden), np.uint16)
        self.topk = Array((shape.tokens, shape.topk), np.int64)
        self.weights = Array((shape.tokens, shape.topk), np.float32)
        self.sent = Array((shape.tokens, shape.copies), np.int64)
        self.received = Array((local, rows, shape.hidden), np.uint8 if fp8 else np.uint16)
        self.scales = Array((local, groups, rows), np.float32)
        self.expert_counts = Array((local,), np.int32)
        self.source_tokens = Array((local, rows), np.int32)
        self.ranges = Array((local, shape.world), np.int64)
        words = RECEIPT_WORDS + 2 * shape.topk
        self.receipts = Array((shape.world, shape.tokens, words), np.int32)
        self.source_messages = Array((shape.world,), np.int32)
        self.rows = Array((local, rows, shape.hidden), np.uint16)
        self.combined = Array((shape.tokens, shape.hidden), np.uint16)

    def take(self, batch: Batch) -> None:
        """Writes the inputs, poisons all outputs."""
        self.batch = batch
        for array in vars(self).values():
            if isinstance(array, Array):
                array.poison()
        self.tokens.write(batch.tokens)
        self.topk.write(batch.topk)
        self.weights.write(batch.weights)
        checked(driver.cuStreamSynchronize(0))  # the poison too is there

    def poison_outputs(self) -> None:
        """When no kernel runs."""
        for name in ("sent", "received", "scales", "expert_counts", "source_tokens", "ranges",
                     "receipts", "source_messages", "combined"):  # fmt: skip
            getattr(self, name).poison()
        checked(driver.cuStreamSynchronize(0))

    def dispatch_call(self, phases: int) -> DispatchCall:
        assert self.batch is not None
        names = ("tokens", "topk", "sent", "received", "scales", "expert_counts", "source_tokens",
                 "ranges", "receipts", "source_messages")  # fmt: skip
        count, k = self.batch.topk.shape
        addresses = {name: getattr(self, name).address for name in names}
        if self.early:
            addresses["weights"] = self.weights.address
        return DispatchCall(**addresses, sums=0, count=count, k=k, phases=phases)

    def combine_call(self, phases: int) -> CombineCall:
        assert self.batch is not None
        names = ("rows", "topk", "weights", "sent", "receipts", "source_messages", "combined")
        count, k = self.batch.topk.shape
        addresses = {name: getattr(self, name).address for name in names}
        if self.early:
            del addresses["weights"]
        return CombineCall(**addresses, count=count, k=k, phases=phases)

    def close(self) -> None:
        for array in vars(self).values():
            if isinstance(array, Array):
                array.close()


@contextmanager
def expert_ranks(
    kernels: Kernels, shape: Shape, *, fp8: bool = False, timeout_s: float = 20.0,
    mask: bool = False, sets: int = 2, kinds: Sequence[bool] | None = None,
) -> Iterator[list[Rank]]:  # fmt: skip
    """All ranks of a buffer in this process, each with its share of the GPU's processors."""
    each = kernels.processors // shape.world
    with ExitStack() as stack:
        ranks = []
        for rank in range(shape.world):
            end = LowLatency(shape, rank, kernels, blocks=each, timeout_s=timeout_s, mask=mask)
            ranks.append(Rank(end, [fp8] * sets if kinds is None else kinds))
            stack.callback(ranks[-1].close)
        for one in ranks:
            one.end.connect([other.end.window for other in ranks])
        checked(driver.cuCtxSynchronize())
        yield ranks
        checked(driver.cuCtxSynchronize())


def counts_of(rng: np.random.Generator, shape: Shape) -> list[int]:
    """Of each rank; often one has none and one has all that fit."""
    counts = rng.integers(0, shape.tokens + 1, shape.world)
    counts[rng.integers(shape.world)] = shape.tokens
    if shape.world > 1:
        counts[rng.integers(shape.world)] = 0
    return [int(count) for count in counts]


def trip(
    ranks: list[Rank], rng: np.random.Generator, *, power: bool = False, which: int = 0
) -> None:
    """Fresh tokens of all ranks, out and back."""
    shape = ranks[0].end.shape
    for rank, count in zip(ranks, counts_of(rng, shape), strict=True):
        rank.dispatch(Batch.random(rng, shape, count), which, power=power)
    came(ranks)
    check_dispatch(ranks, which, power=power)
    results = expert_rows(ranks, rng, which)
    for rank in ranks:
        rank.combine(which)
    came(ranks)
    check_combine(ranks, results, which)


def came(ranks: list[Rank]) -> None:
    """Waits until what was launched has ended."""
    for rank in ranks:
        rank.sync()
        assert rank.end.failure() is None


def check_dispatch(ranks: list[Rank], which: int = 0, power: bool = False) -> None:
    """Every row of every expert is the token that its source says; counts are exact."""
    shape = ranks[0].end.shape
    local = shape.local_experts
    checks: list[Callable[[], None]] = []
    size = 0
    for rank in ranks:
        out = rank.sets[which]
        counts, ranges = out.expert_counts.read(), out.ranges.read()
        sources = out.source_tokens.read()
        scales = out.scales.read() if out.fp8 else None
        for expert in range(local):
            end = 0
            received = out.received.read_rows(expert, int(counts[expert]))
            for source, other in enumerate(ranks):
                batch = other.sets[which].batch
                assert batch is not None
                wanted = np.unique(np.nonzero(batch.topk == rank.end.rank * local + expert)[0])
                first, count = ranges[expert, source] >> 32, ranges[expert, source] & 0xFFFFFFFF
                assert (first, count) == (end, len(wanted))
                rows = slice(int(first), int(first + count))
                tokens = sources[expert, rows]
                assert sorted(tokens) == sorted(wanted)
                codes = None if scales is None else scales[expert][:, rows].T
                checks.append(partial(check_rows, batch, tokens, received[rows], codes, power))
                end += int(count)
            assert counts[expert] == end
            size += received.nbytes
    at_once(checks, size)


def check_rows(
    batch: Batch, tokens: np.ndarray, rows: np.ndarray, scales: np.ndarray | None, power: bool
) -> None:
    if scales is None:
        assert np.array_equal(rows, batch.tokens[tokens])
    else:
        check_cast(batch.tokens[tokens], rows, scales, power)


def check_cast(tokens: np.ndarray, codes: np.ndarray, scales: np.ndarray, power: bool) -> None:
    groups = float_of(tokens).reshape(*scales.shape, SCALE_CHANNELS)
    least = np.maximum(np.abs(groups).max(axis=-1), 1e-4) / 448
    wanted = 2.0 ** np.ceil(np.log2(least)) if power else least
    assert np.allclose(scales, wanted, rtol=1e-6)
    back = float_of_fp8(codes).reshape(groups.shape) * scales[..., None].astype(np.float64)
    # Half a step of 2^-3 of the value, or of the least steps, 2^-9 scales.
    bound = np.maximum(np.abs(groups) * 2.0**-4, scales[..., None] * 2.0**-10) * 1.001
    assert (np.abs(back - groups) <= bound).all()


def expert_rows(
    ranks: list[Rank], rng: np.random.Generator, which: int = 0
) -> list[list[np.ndarray]]:
    """Random results, by rank and local expert; rows that no token has stay poisoned."""
    results = []
    for rank in ranks:
        out = rank.sets[which]
        made = [
            bf16_of(rng.standard_normal((count, rank.end.shape.hidden), np.float32))
            for count in out.expert_counts.read()
        ]
        for expert, rows in enumerate(made):
            out.rows.write_rows(expert, rows)
        results.append(made)
    return results


def check_combine(
    ranks: list[Rank],
    results: Sequence[Sequence[np.ndarray] | np.ndarray],
    which: int = 0,
    without: frozenset[int] = frozenset(),
) -> None:
    """Each token's weighted sum over its experts, in float64; `without`: ranks that were lost."""
    shape = ranks[0].end.shape
    checks: list[Callable[[], None]] = []
    size = sum(rows.nbytes for one in results for rows in one)
    step = SUMMED_CHANNELS if size >= MUCH_BYTES else shape.hidden
    for rank in ranks:
        if rank.end.rank in without:
            continue
        batch = rank.sets[which].batch
        assert batch is not None
        combined = rank.sets[which].combined.read()[: len(batch.topk)]
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        for owner, other in enumerate(ranks):
            if owner in without:
                continue
            ranges = other.sets[which].ranges.read()
            tokens = other.sets[which].source_tokens.read()
            for expert in range(shape.local_experts):
                word = int(ranges[expert, rank.end.rank])
                rows = slice(word >> 32, (word >> 32) + (word & 0xFFFFFFFF))
                at = tokens[expert, rows]
                chosen = batch.topk[at] == owner * shape.local_experts + expert
                weights = batch.weights[at, chosen.argmax(axis=1)].astype(np.float64)
                assert len(np.unique(at)) == len(at)
                parts.append((at, weights[:, None], results[owner][expert][rows]))
        for first in range(0, shape.hidden, step):
            channels = slice(first, first + step)
            checks.append(partial(check_sums, combined[:, channels], parts, channels))
    at_once(checks, size)


def check_sums(
    combined: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], channels: slice
) -> None:
    """parts: tokens, their weights and rows; a token once in each."""
    wanted, size = np.zeros(combined.shape), np.zeros(combined.shape)
    for at, weights, rows in parts:
        part = weights * float_of(rows[:, channels])
        wanted[at] += part
        size[at] += np.abs(part)
    # Two roundings to bfloat16 and float sums.
    assert (np.abs(float_of(combined) - wanted) <= size * 2.0**-7 + 1e-30).all()
