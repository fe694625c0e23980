"""What an expert-parallel exchange moves, computed alike by every rank; used by moe_rank.py.

Everything follows from the seed: any rank, and anybody who checks the exchange, can recompute the
tokens, the routing and the result of every other rank. No input or output happens here.

Rows. A dispatch row is a 64-byte header (token, count of experts, their ids, their weights) and
the token in bfloat16. A combine row is the float32 sum of one token's experts on one rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

HEADER = np.dtype(
    [
        ("token", "<u4"),
        ("source", "<u4"),
        ("experts", "<u2", (8,)),
        ("weights", "<f4", (8,)),
        ("iteration", "<u4"),
        ("reserved", "<u4"),
    ]
)
COUNT_BYTES = 16
MAX_TOPK = 8
PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of an exchange; equal on every rank. hidden counts bfloat16 elements."""

    world_size: int
    tokens: int = 128
    topk: int = 8
    experts: int = 64
    hidden: int = 3584
    seed: int = 1
    idle_ranks: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.world_size < 1 or self.experts % self.world_size:
            raise ValueError(
                f"{self.experts} experts cannot be spread evenly over {self.world_size} ranks: "
                "choose experts as a multiple of the world size"
            )
        if not 1 <= self.topk <= min(MAX_TOPK, self.experts):
            raise ValueError(f"topk is {self.topk}; choose 1 to {min(MAX_TOPK, self.experts)}")
        if self.hidden < 8 or self.hidden % 8:
            raise ValueError(f"hidden is {self.hidden}; choose a multiple of 8 (16-byte rows)")
        if not 0 <= self.tokens < 1 << 15:
            raise ValueError(f"tokens is {self.tokens}; choose 0 to {(1 << 15) - 1}")

    @property
    def local_experts(self) -> int:
        return self.experts // self.world_size

    @property
    def dispatch_row(self) -> int:
        return HEADER.itemsize + 2 * self.hidden

    @property
    def combine_row(self) -> int:
        return 4 * self.hidden

    def tokens_of(self, rank: int) -> int:
        return 0 if rank in self.idle_ranks else self.tokens


@dataclass(frozen=True)
class Areas:
    """Byte offsets inside a rank's region; equal on every rank, so that peers can be written."""

    staging: int  # dispatch rows of this rank's tokens
    count_staging: int  # one count cell per destination rank
    received: int  # dispatch rows, [source rank][row]
    counts: int  # one count cell per source rank
    partials: int  # combine rows to send, [source rank][row]
    combined: int  # combine rows received, [rank that computed them][row]
    total: int


def areas(shape: Shape) -> Areas:
    """Lays the areas out one after the other, each on a page of its own."""
    pairs = shape.world_size * shape.tokens
    sizes = [
        shape.tokens * shape.dispatch_row,
        shape.world_size * COUNT_BYTES,
        pairs * shape.dispatch_row,
        shape.world_size * COUNT_BYTES,
        pairs * shape.combine_row,
        pairs * shape.combine_row,
    ]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-max(size, 1) // PAGE_BYTES) * PAGE_BYTES)
    return Areas(*starts)


@dataclass(frozen=True)
class Source:
    """One rank's tokens in one iteration and where they go."""

    rows: Bytes  # (tokens, dispatch_row): header and token, as they travel
    bfloat: NDArray[np.uint16]  # (tokens, hidden)
    experts: Ints  # (tokens, topk), ascending
    weights: Floats  # (tokens, topk)
    to_rank: list[Ints]  # for each rank, the tokens that it gets, ascending


def source(shape: Shape, rank: int, iteration: int) -> Source:
    """The tokens that rank sends in this iteration: random routing, random finite values."""
    count = shape.tokens_of(rank)
    random = np.random.default_rng([shape.seed, iteration, rank])
    logits = random.standard_normal((count, shape.experts), dtype=np.float32)
    experts = np.sort(np.argsort(-logits, axis=1, kind="stable")[:, : shape.topk], axis=1)
    scores = np.exp(np.take_along_axis(logits, experts, axis=1))
    weights = (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)
    bits = random.integers(0, 1 << 16, (count, shape.hidden), dtype=np.uint16)
    # Sign, mantissa and the low exponent bits stay random: magnitudes from 2^-7 to 2.
    bfloat = (bits & np.uint16(0x83FF)) | np.uint16(0x3C00)

    header = np.zeros(count, HEADER)
    header["token"] = np.arange(count)
    header["source"] = rank
    header["iteration"] = iteration
    header["experts"] = 0xFFFF
    header["experts"][:, : shape.topk] = experts
    header["weights"][:, : shape.topk] = weights
    rows = np.empty((count, shape.dispatch_row), np.uint8)
    rows[:, : HEADER.itemsize] = header.view(np.uint8).reshape(count, HEADER.itemsize)
    rows[:, HEADER.itemsize :] = bfloat.view(np.uint8)

    home = experts // shape.local_experts
    to_rank = [np.flatnonzero((home == r).any(axis=1)) for r in range(shape.world_size)]
    return Source(rows, bfloat, experts, weights, to_rank)


def widen(bfloat: NDArray[np.uint16]) -> Floats:
    """bfloat16 bits as the float32 values that they stand for."""
    return (bfloat.astype(np.uint32) << np.uint32(16)).view(np.float32)


def expert(index: int, values: Floats) -> Floats:
    """The stand-in for an expert's network: another affine function for each expert."""
    return values * np.float32(1 + index / 64) + np.float32((index - 32) / 128)


def partial_sums(shape: Shape, rank: int, values: Floats, experts: Ints, weights: Floats) -> Floats:
    """Weighted float32 sum of rank's experts for each token, experts ascending.

    values (n, hidden), experts and weights (n, topk) → (n, hidden).
    """
    total = np.zeros(values.shape, np.float32)
    first = rank * shape.local_experts
    for index in range(first, first + shape.local_experts):
        token, slot = np.nonzero(experts == index)
        if len(token):
            total[token] += weights[token, slot][:, None] * expert(index, values[token])
    return total


def sum_in_rank_order(sent: Source, rows: dict[int, Floats]) -> Floats:
    """Adds the combine rows by rank, ascending; rows[r] belongs to sent.to_rank[r]."""
    total = np.zeros(sent.bfloat.shape, np.float32)
    for rank in sorted(rows):
        total[sent.to_rank[rank]] += rows[rank]
    return total


def reference(shape: Shape, sent: Source, ranks: Iterable[int] | None = None) -> Floats:
    """What the exchange must give the sender, computed without any exchange; by default of all
    ranks, else of those that had a part in it."""
    values = widen(sent.bfloat)
    rows = {}
    for rank in range(shape.world_size) if ranks is None else ranks:
        chosen = sent.to_rank[rank]
        rows[rank] = partial_sums(
            shape, rank, values[chosen], sent.experts[chosen], sent.weights[chosen]
        )
    return sum_in_rank_order(sent, rows)


def unpack_rows(shape: Shape, rows: Bytes) -> tuple[Floats, Ints, Floats]:
    """Values, experts and weights of dispatch rows as they arrived."""
    header = np.ascontiguousarray(rows[:, : HEADER.itemsize]).view(HEADER).reshape(len(rows))
    bfloat = np.ascontiguousarray(rows[:, HEADER.itemsize :]).view(np.uint16)
    experts = header["experts"][:, : shape.topk].astype(np.int64)
    return widen(bfloat), experts, header["weights"][:, : shape.topk].astype(np.float32)


def expected_payload(shape: Shape, iterations: int) -> NDArray[np.int64]:
    """Payload bytes that each rank writes to each rank, (world, world): a floor for counters."""
    sent = np.zeros((shape.world_size, shape.world_size), np.int64)
    for iteration in range(iterations):
        for rank in range(shape.world_size):
            to_rank = source(shape, rank, iteration).to_rank
            rows = np.array([len(chosen) for chosen in to_rank], np.int64)
            sent[rank] += rows * shape.dispatch_row + COUNT_BYTES
            sent[:, rank] += rows * shape.combine_row
    return sent
