"""Exponential histograms as the native core counts them: merge, downscale, quantile.

Called by the ledger (what is exported) and by whoever shows a P50 or P99 of a group.

Bucket `i` at scale `s` holds the values v (seconds) with 2**(i / 2**s) < v <= 2**((i + 1) / 2**s):
the rule of OpenTelemetry's exponential histograms, whose base is 2**(2**-s).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epfabric_agent._native import PhaseStats

MAX_SCALE = 8
"""The finest that Prometheus stores; finer buckets are merged before export."""
MIN_SCALE = -4
"""The coarsest that Prometheus takes; 160 buckets of it span more than a double can hold."""
MAX_BUCKETS = 160
_NS_PER_S = 1e9


@dataclass(frozen=True)
class Histogram:
    """Counts of durations in seconds; `counts[k]` belongs to bucket index `offset + k`."""

    scale: int
    offset: int = 0
    counts: tuple[int, ...] = ()
    zero_count: int = 0
    sum: float = 0.0
    minimum: float = 0.0
    maximum: float = 0.0

    @property
    def count(self) -> int:
        """All recorded values, zeros included."""
        return self.zero_count + sum(self.counts)


def from_core(stats: PhaseStats) -> Histogram:
    """One phase of the core's `barrier_stats` (its sums and extremes are in nanoseconds)."""
    return trim(
        Histogram(
            scale=stats["scale"],
            offset=stats["offset"],
            counts=tuple(stats["buckets"]),
            zero_count=stats["zero_count"],
            sum=stats["sum_ns"] / _NS_PER_S,
            minimum=stats["min_ns"] / _NS_PER_S,
            maximum=stats["max_ns"] / _NS_PER_S,
        )
    )


def trim(histogram: Histogram) -> Histogram:
    """The same histogram without empty buckets at its ends."""
    counts = histogram.counts
    first = next((k for k, n in enumerate(counts) if n), len(counts))
    last = next((k for k in range(len(counts), first, -1) if counts[k - 1]), first)
    if first == 0 and last == len(counts):
        return histogram
    offset = histogram.offset + first if first < last else 0
    return _with_buckets(histogram, histogram.scale, offset, counts[first:last])


def downscale(histogram: Histogram, scale: int) -> Histogram:
    """The same values counted at a coarser scale; exact, as buckets nest.

    Raises ValueError when `scale` is finer than the histogram's own.
    """
    shift = histogram.scale - scale
    if shift < 0:
        raise ValueError(f"cannot refine scale {histogram.scale} to {scale}: counts do not say how")
    if shift == 0 or not histogram.counts:
        return _with_buckets(histogram, scale, histogram.offset >> shift, histogram.counts)
    offset = histogram.offset >> shift
    last = (histogram.offset + len(histogram.counts) - 1) >> shift
    counts = [0] * (last - offset + 1)
    for k, n in enumerate(histogram.counts):
        counts[((histogram.offset + k) >> shift) - offset] += n
    return _with_buckets(histogram, scale, offset, tuple(counts))


def merge(first: Histogram, second: Histogram) -> Histogram:
    """Both histograms' values in one, at the coarser of the two scales; exact."""
    if not first.count or not second.count:
        return first if first.count else second
    scale = min(first.scale, second.scale)
    parts = [p for p in (downscale(first, scale), downscale(second, scale)) if p.counts]
    offset = min((p.offset for p in parts), default=0)
    counts = [0] * (max((p.offset + len(p.counts) for p in parts), default=0) - offset)
    for part in parts:
        for k, n in enumerate(part.counts, part.offset - offset):
            counts[k] += n
    return Histogram(
        scale=scale,
        offset=offset,
        counts=tuple(counts),
        zero_count=first.zero_count + second.zero_count,
        sum=first.sum + second.sum,
        minimum=min(first.minimum, second.minimum),
        maximum=max(first.maximum, second.maximum),
    )


def merge_all(histograms: Iterable[Histogram], scale: int = MAX_SCALE) -> Histogram:
    """All of them in one; an empty histogram of `scale` when there are none."""
    total = Histogram(scale)
    for histogram in histograms:
        total = merge(total, histogram)
    return total


def fit(histogram: Histogram, limit: int = MAX_BUCKETS) -> Histogram:
    """As few merges as bring it to at most `limit` buckets and to a scale that backends take."""
    fitted = trim(downscale(histogram, min(histogram.scale, MAX_SCALE)))
    while len(fitted.counts) > limit and fitted.scale > MIN_SCALE:
        fitted = downscale(fitted, fitted.scale - 1)
    return fitted


def quantile(histogram: Histogram, q: float) -> float | None:
    """The q-quantile in seconds; None of an empty histogram.

    The value of rank ceil(q * count) lies in the same bucket as the answer, so the two differ by
    a factor of less than 2**(2**-scale). Inside the bucket the answer is interpolated on the log
    scale, and never lies outside the recorded extremes.
    """
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a quantile lies between 0 and 1, not {q}")
    total = histogram.count
    if total == 0:
        return None
    rank = max(1, math.ceil(q * total))
    seen = histogram.zero_count
    if rank <= seen:
        return 0.0
    for k, n in enumerate(histogram.counts):
        if seen + n >= rank:
            exponent = (histogram.offset + k + (rank - seen) / n) * math.exp2(-histogram.scale)
            return min(max(math.exp2(exponent), histogram.minimum), histogram.maximum)
        seen += n
    raise AssertionError("the counts do not add up to the count")


def _with_buckets(
    histogram: Histogram, scale: int, offset: int, counts: Sequence[int]
) -> Histogram:
    return Histogram(
        scale=scale,
        offset=offset,
        counts=tuple(counts),
        zero_count=histogram.zero_count,
        sum=histogram.sum,
        minimum=histogram.minimum,
        maximum=histogram.maximum,
    )
