"""The plan of the expert-parallel exchange: routing, layout and reference, without any exchange."""

import random

import moe_plan
import numpy as np
import pytest
from moe_plan import Shape

SHAPE = Shape(world_size=8, tokens=32, hidden=64, seed=random.SystemRandom().randrange(1 << 30))


@pytest.fixture(autouse=True)
def _print_seed() -> None:
    print(f"seed {SHAPE.seed}")


def test_every_rank_computes_the_same_and_no_two_iterations_do() -> None:
    first, again = moe_plan.source(SHAPE, 3, 0), moe_plan.source(SHAPE, 3, 0)
    assert np.array_equal(first.rows, again.rows)
    for other in (moe_plan.source(SHAPE, 3, 1), moe_plan.source(SHAPE, 4, 0)):
        assert not np.array_equal(first.bfloat, other.bfloat)
        assert not np.array_equal(first.experts, other.experts)


def test_routing_picks_distinct_experts_and_goes_where_they_live() -> None:
    sent = moe_plan.source(SHAPE, 0, 0)
    assert (np.diff(sent.experts, axis=1) > 0).all()
    assert np.allclose(sent.weights.sum(axis=1), 1, atol=1e-6)
    for rank, tokens in enumerate(sent.to_rank):
        lives_there = (sent.experts // SHAPE.local_experts == rank).any(axis=1)
        assert tokens.tolist() == np.flatnonzero(lives_there).tolist()
    assert np.isfinite(moe_plan.widen(sent.bfloat)).all()


def test_rows_carry_everything_that_the_receiver_needs() -> None:
    sent = moe_plan.source(SHAPE, 2, 5)
    values, experts, weights = moe_plan.unpack_rows(SHAPE, sent.rows)
    assert np.array_equal(values, moe_plan.widen(sent.bfloat))
    assert np.array_equal(experts, sent.experts)
    assert np.array_equal(weights, sent.weights)


def test_the_reference_is_the_plain_mixture_of_experts() -> None:
    sent = moe_plan.source(SHAPE, 1, 0)
    values = moe_plan.widen(sent.bfloat).astype(np.float64)
    plain = np.zeros_like(values)
    for token in range(SHAPE.tokens):
        for index, weight in zip(sent.experts[token], sent.weights[token], strict=True):
            plain[token] += weight * (values[token] * (1 + index / 64) + (index - 32) / 128)
    assert np.allclose(moe_plan.reference(SHAPE, sent), plain, rtol=1e-5, atol=1e-5)


def test_rows_that_travelled_through_bytes_give_the_reference_bit_for_bit() -> None:
    sent = moe_plan.source(SHAPE, 6, 2)
    rows = []
    for rank, tokens in enumerate(sent.to_rank):
        arrived = np.frombuffer(sent.rows[tokens].tobytes(), np.uint8)
        unpacked = moe_plan.unpack_rows(SHAPE, arrived.reshape(len(tokens), SHAPE.dispatch_row))
        sums = moe_plan.partial_sums(SHAPE, rank, *unpacked)
        rows.append(np.frombuffer(sums.tobytes(), np.float32).reshape(len(tokens), SHAPE.hidden))
    total = moe_plan.sum_in_rank_order(sent, dict(enumerate(rows)))
    assert total.tobytes() == moe_plan.reference(SHAPE, sent).tobytes()


def test_an_idle_rank_sends_nothing_and_still_has_a_plan() -> None:
    shape = Shape(world_size=4, tokens=16, hidden=64, idle_ranks=frozenset({2}))
    sent = moe_plan.source(shape, 2, 0)
    assert [len(t) for t in sent.to_rank] == [0, 0, 0, 0]
    assert moe_plan.reference(shape, sent).shape == (0, 64)
    payload = moe_plan.expected_payload(shape, 3)
    assert payload[2, 2] == 3 * moe_plan.COUNT_BYTES
    assert payload[0, 2] > payload[2, 2], "others still send to it, since experts live there"


def test_payload_counts_every_row_once_in_each_direction() -> None:
    payload = moe_plan.expected_payload(SHAPE, 2)
    for a, b in ((0, 1), (7, 3), (5, 5)):
        there = sum(len(moe_plan.source(SHAPE, a, i).to_rank[b]) for i in range(2))
        back = sum(len(moe_plan.source(SHAPE, b, i).to_rank[a]) for i in range(2))
        expected = there * SHAPE.dispatch_row + back * SHAPE.combine_row + 2 * moe_plan.COUNT_BYTES
        assert payload[a, b] == expected


def test_areas_are_disjoint_and_aligned() -> None:
    at = moe_plan.areas(SHAPE)
    starts = [at.staging, at.count_staging, at.received, at.counts, at.partials, at.combined]
    assert starts == sorted(set(starts))
    assert all(start % 4096 == 0 for start in starts)
    assert at.counts - at.received >= 8 * 32 * SHAPE.dispatch_row
    assert at.total - at.combined >= 8 * 32 * SHAPE.combine_row
    assert SHAPE.dispatch_row % 16 == 0
    assert SHAPE.combine_row % 16 == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"world_size": 7}, "multiple of the world size"),
        ({"topk": 9}, "topk"),
        ({"topk": 0}, "topk"),
        ({"hidden": 12}, "multiple of 8"),
        ({"tokens": 1 << 15}, "tokens"),
    ],
)
def test_impossible_shapes_say_what_to_choose(change: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Shape(**{"world_size": 8, **change})  # type: ignore[arg-type]
