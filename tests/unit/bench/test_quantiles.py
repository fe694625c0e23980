"""Medians and their intervals, against what can be counted by hand and by simulation."""

from __future__ import annotations

import random

import pytest
from epfabric_bench.quantiles import median, median_interval, quantile


def test_a_quantile_is_a_value_that_was_measured() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [quantile(values, q) for q in (0.0, 0.2, 0.5, 0.99, 1.0)] == [1, 1, 3, 5, 5]
    hundred = [float(value) for value in range(1, 101)]
    assert quantile(hundred, 0.99) == 99
    assert quantile(hundred, 0.50) == 50


def test_the_median_of_an_even_number_lies_between() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5
    assert median([3.0, 1.0, 2.0]) == 2


def test_nine_pairs_give_the_second_and_the_eighth() -> None:
    """Outside lie 2 · (1 + 9) of 2⁹ ways that nine coins fall."""
    found = median_interval([float(value) for value in range(9, 0, -1)])
    assert (found.low, found.high) == (2, 8)
    assert found.confidence == pytest.approx(1 - 20 / 512)


def test_too_few_values_say_what_they_reach() -> None:
    found = median_interval([2.0, 1.0])
    assert (found.low, found.high, found.confidence) == (1, 2, 0.5)
    assert median_interval([7.0]).confidence == 0


@pytest.mark.parametrize("count", [9, 10, 15, 30])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    source = random.Random(seed)
    rounds, held, confidence = 3000, 0, 0.0
    for _ in range(rounds):
        found = median_interval([source.lognormvariate(0, 1) for _ in range(count)])
        held += found.low <= 1 <= found.high  # the median of a lognormal distribution with mu 0
        confidence = found.confidence
    assert confidence >= 0.95
    assert abs(held / rounds - confidence) < 0.025


@pytest.mark.parametrize("function", [median, median_interval])
def test_nothing_has_no_median(function: object) -> None:
    assert callable(function)
    with pytest.raises(ValueError, match="no values"):
        function([])
