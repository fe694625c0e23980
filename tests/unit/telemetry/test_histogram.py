"""The histogram arithmetic against numpy: counts, scales, quantiles and their error bound."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from epfabric_agent.telemetry import histogram
from epfabric_agent.telemetry.histogram import Histogram

SEEDS = [random.SystemRandom().randrange(2**32) for _ in range(6)]


def counted(values: np.ndarray, scale: int) -> Histogram:
    """A histogram made value by value in the slow and obvious way."""
    positive = values[values > 0]
    index = np.ceil(np.log2(positive) * 2.0**scale).astype(int) - 1
    low = int(index.min()) if len(index) else 0
    counts = np.bincount(index - low) if len(index) else np.zeros(0, int)
    return Histogram(
        scale=scale,
        offset=low,
        counts=tuple(int(n) for n in counts),
        zero_count=int((values == 0).sum()),
        sum=float(values.sum()),
        minimum=float(values.min()) if len(values) else 0.0,
        maximum=float(values.max()) if len(values) else 0.0,
    )


def durations(rng: np.random.Generator, count: int) -> np.ndarray:
    """Barrier-like: log-normal around 10 µs with a heavy tail, and some zeros."""
    values = rng.lognormal(math.log(1e-5), rng.uniform(0.1, 2.0), count)
    values[rng.random(count) < 0.01] = 0.0
    return values


@pytest.mark.parametrize("seed", SEEDS)
def test_quantiles_stay_inside_the_bucket_of_the_exact_value(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for scale in (-2, 0, 3, 5, 8):
        values = durations(rng, int(rng.integers(1, 4000)))
        made = counted(values, scale)
        for q in (0.0, 0.5, 0.9, 0.99, 0.999, 1.0):
            exact = float(np.quantile(values, q, method="inverted_cdf"))
            got = histogram.quantile(made, q)
            assert got is not None
            if exact == 0.0:
                assert got == 0.0
            else:
                assert abs(math.log2(got / exact)) <= 2.0**-scale * (1 + 1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_downscaling_counts_as_if_it_had_been_coarse_from_the_start(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    values = durations(rng, 3000)
    fine = counted(values, 8)
    for scale in range(8, -5, -1):
        assert histogram.downscale(fine, scale) == histogram.trim(counted(values, scale))


@pytest.mark.parametrize("seed", SEEDS)
def test_merging_counts_as_if_both_had_been_recorded_together(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for _ in range(20):
        first, second = (durations(rng, int(rng.integers(0, 300))) for _ in range(2))
        scales = rng.integers(-4, 9, 2)
        merged = histogram.merge(counted(first, int(scales[0])), counted(second, int(scales[1])))
        # An empty side brings no scale of its own.
        coarse = min(
            [int(s) for s, v in zip(scales, (first, second), strict=True) if len(v)] or [8]
        )
        whole = counted(np.concatenate([first, second]), coarse)
        assert merged.count == len(first) + len(second)
        if merged.count:
            assert (merged.scale, merged.offset, merged.counts) == (
                whole.scale,
                whole.offset,
                whole.counts,
            )
            assert merged.zero_count == whole.zero_count
            assert (merged.minimum, merged.maximum) == (
                min(v.min() for v in (first, second) if len(v)),
                max(v.max() for v in (first, second) if len(v)),
            )
            assert merged.sum == pytest.approx(whole.sum)


@pytest.mark.parametrize("seed", SEEDS)
def test_fit_keeps_every_count_and_the_finest_scale_that_fits(seed: int) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for limit in (4, 20, 160):
        values = durations(rng, 5000)
        wide = counted(values, 10)
        fitted = histogram.fit(wide, limit)
        assert len(fitted.counts) <= limit
        assert fitted.count == len(values)
        assert fitted.scale <= histogram.MAX_SCALE
        if fitted.scale < histogram.MAX_SCALE:
            finer = histogram.downscale(wide, fitted.scale + 1)
            assert len(finer.counts) > limit


def test_fit_brings_the_widest_range_of_a_double_under_the_limit() -> None:
    widest = counted(np.array([5e-324, 1.0, 1.7e308]), 5)
    fitted = histogram.fit(widest)
    assert len(fitted.counts) <= histogram.MAX_BUCKETS
    assert fitted.scale >= histogram.MIN_SCALE
    assert fitted.count == 3


def test_fit_never_exports_a_finer_scale_than_backends_store() -> None:
    assert histogram.fit(counted(np.full(3, 1e-5), 12)).scale == histogram.MAX_SCALE


def test_the_cores_fixed_array_loses_only_its_empty_ends() -> None:
    scale, low = 5, -30 * 32
    buckets = [0] * 1216
    for value, times in ((1e-6, 3), (2e-6, 2), (1.5e-3, 1)):
        buckets[math.ceil(math.log2(value) * 32) - 1 - low] += times
    got = histogram.from_core(
        {
            "count": 10,
            "scale": scale,
            "offset": low,
            "buckets": buckets,
            "zero_count": 4,
            "sum_ns": 3 * 1000 + 2 * 2000 + 1_500_000,
            "min_ns": 0,
            "max_ns": 1_500_000,
        }
    )
    assert got.count == 10
    assert got.counts[0] == 3
    assert got.counts[-1] == 1
    assert got.sum == pytest.approx(1.507e-3)
    assert histogram.quantile(got, 0.99) == pytest.approx(1.5e-3, rel=2**-5)


def test_values_on_a_bound_belong_to_the_bucket_below() -> None:
    made = counted(np.array([2.0, 4.0]), 0)
    assert (made.offset, made.counts) == (0, (1, 1))
    assert histogram.downscale(made, -1).counts == (2,)


def test_an_empty_histogram_has_no_quantile_and_a_wrong_q_is_refused() -> None:
    assert histogram.quantile(Histogram(5), 0.5) is None
    assert histogram.merge_all([]) == Histogram(histogram.MAX_SCALE)
    with pytest.raises(ValueError, match="between 0 and 1"):
        histogram.quantile(Histogram(5), 99)
    with pytest.raises(ValueError, match="cannot refine"):
        histogram.downscale(Histogram(2), 3)
