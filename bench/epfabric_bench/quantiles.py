"""Medians, quantiles and the interval of a median; used by series.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """The true median lies in [low, high] with this confidence (0 … 1)."""

    low: float
    high: float
    confidence: float


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that a share `q` (0 … 1) of `values` reaches or stays below."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The narrowest pair of order statistics that holds the median with `confidence`.

    Nothing is assumed of the distribution: each value lies below the median like a fair coin. Too
    few values cannot reach the confidence: then smallest and largest, with what they reach.
    """
    ordered = sorted(values)
    count = len(ordered)
    if count == 0:
        raise ValueError("no values")
    outside, left_out = 0.0, 0
    while left_out < (count - 1) // 2:
        more = outside + 2 * math.comb(count, left_out) / 2**count
        if left_out > 0 and more > 1 - confidence:
            break
        outside = more
        left_out += 1
    left_out = max(left_out, 1)
    reached = 1 - 2 * sum(math.comb(count, i) for i in range(left_out)) / 2**count
    return Interval(ordered[left_out - 1], ordered[-left_out], max(reached, 0.0))
