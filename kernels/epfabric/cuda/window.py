"""Sizes and places in the memory that ranks exchange in: mirror of window.h, where peers' kernels
write, and of transit.h, where the agents do."""

from __future__ import annotations

from dataclasses import dataclass

PARITIES = 2
MAX_TOPK = 16
MAX_RANKS = 1024
MAX_EXPERTS = 1024
MAX_TOKENS = 1 << 20
SCALE_CHANNELS = 128
QUICK_WEIGHTS = QUICK_ROWS = 2048


@dataclass(frozen=True)
class Shape:
    """What all ranks of a buffer agree on; raises ValueError where kernels could not follow.

    tokens: at most, of one rank in one call. hidden: channels of a token. topk: at most.
    """

    world: int
    experts: int
    tokens: int
    hidden: int
    topk: int

    def __post_init__(self) -> None:
        for name, most in (
            ("world", MAX_RANKS),
            ("experts", MAX_EXPERTS),
            ("tokens", MAX_TOKENS),
            ("hidden", 1 << 16),
            ("topk", MAX_TOPK),
        ):
            if not 1 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be 1 to {most}, not {getattr(self, name)}")
        if self.experts % self.world:
            raise ValueError(f"{self.experts} experts do not spread evenly over {self.world} ranks")
        if self.hidden % SCALE_CHANNELS:
            raise ValueError(f"hidden must be a multiple of {SCALE_CHANNELS}, not {self.hidden}")
        if self.experts * self.tokens > 2**31 - 1:
            raise ValueError(
                f"{self.experts} experts with {self.tokens} tokens each have over 2**31 rows"
            )

    @property
    def local_experts(self) -> int:
        return self.experts // self.world

    @property
    def copies(self) -> int:
        """To how many ranks a token goes at most."""
        return min(self.topk, self.world)

    @property
    def rows(self) -> int:
        """Of each local expert's output: one for every token of every rank."""
        return self.world * self.tokens

    def message_bytes(self, fp8: bool) -> int:
        """One token for one destination rank, with its header."""
        header = 16 + (self.topk + 3) // 4 * 32
        if not fp8:
            return header + 2 * self.hidden
        return header + (self.hidden + self.hidden // SCALE_CHANNELS * 4 + 15) // 16 * 16


@dataclass(frozen=True)
class Window:
    """Offsets in bytes, in the order of window.h."""

    dispatch_words: int
    weight_words: int
    combine_words: int
    dispatch_credits: int
    combine_credits: int
    quick_weights: int
    quick_rows: int
    counts: int
    weights: int
    messages: int
    rows: int
    bytes: int


def window_of(shape: Shape) -> Window:
    words = PARITIES * shape.world * 8
    slots = PARITIES * shape.world * shape.tokens
    sizes = [
        words,
        words,
        words,
        shape.world * 8,
        shape.world * 8,
        words * QUICK_WEIGHTS,
        PARITIES * QUICK_ROWS * 8,
        PARITIES * shape.experts * 4,
        slots * shape.topk * 4,
        slots * shape.message_bytes(fp8=False),
        PARITIES * shape.tokens * shape.copies * 2 * shape.hidden,
    ]
    places = [0]
    for size in sizes:
        places.append((places[-1] + size + 127) // 128 * 128)
    return Window(*places)


@dataclass(frozen=True)
class Transit:
    """Offsets and sizes in bytes of either half of the region, in the order of transit.h."""

    tokens: int
    weights: int
    rows: int
    note_bytes: int
    tokens_each: int
    weights_each: int
    rows_each: int
    bytes: int


def transit_of(shape: Shape) -> Transit:
    each = PARITIES * shape.world
    note = 16 + (shape.local_experts * 4 + 15) // 16 * 16
    tokens = note + shape.tokens * shape.message_bytes(fp8=False)
    weights = (shape.tokens * shape.topk * 4 + 15) // 16 * 16
    rows = shape.tokens * 2 * shape.hidden
    places = (0, each * tokens, each * (tokens + weights))
    return Transit(*places, note, tokens, weights, rows, each * (tokens + weights + rows))


def region_bytes(shape: Shape) -> int:
    """Of the region of a rank that exchanges with ranks which only agents reach."""
    return 2 * transit_of(shape).bytes
