"""The ledger: series neither fall nor forget while groups come and go, and stay within bounds."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from epfabric_agent.telemetry.histogram import Histogram
from epfabric_agent.telemetry.ledger import LINGER_S, MAX_GROUPS, OTHER, Ledger
from epfabric_agent.telemetry.readings import METRICS, readings
from epfabric_agent.telemetry.snapshot import (
    BarrierSample,
    PeerSample,
    SessionSample,
    Snapshot,
)

Values = dict[tuple[str, tuple[tuple[str, str], ...]], int | Histogram]


def session(group: str, handle: int, commands: int = 0, **more: object) -> SessionSample:
    fields: dict[str, object] = {"rank": 0, "completed": {"write": commands}, **more}
    return SessionSample(namespace="ns", group=group, handle=handle, **fields)  # type: ignore[arg-type]


def values(ledger: Ledger) -> Values:
    return {(one.metric.name, one.attributes): one.value for one in ledger.series()}


def total(ledger: Ledger, metric: str, group: str | None = None) -> int:
    found = [
        value
        for (name, attributes), value in values(ledger).items()
        if name == metric and group in (None, dict(attributes)["epfabric.group"])
    ]
    assert all(isinstance(value, int) for value in found)
    return sum(value for value in found if isinstance(value, int))


def groups(ledger: Ledger) -> set[str]:
    return {dict(one.attributes)["epfabric.group"] for one in ledger.series()}


def test_what_was_mended_is_told_from_the_first_look_on_and_kept() -> None:
    """A counter that began with what broke first would have no increase to alarm anybody."""
    ledger = Ledger(0)
    ledger.fold(readings(Snapshot(sessions=(session("a", 1),))), 0.0, 10)
    names = ("epfabric.mended", "epfabric.replayed", "epfabric.moved")
    told = {one.metric.name: one.value for one in ledger.series()}
    assert [told.get(name) for name in names] == [0, 0, 0]
    later = session("a", 1, mended=2, replayed=9, moved=1)
    ledger.fold(readings(Snapshot(sessions=(later,))), 1.0, 20)
    ledger.fold(readings(Snapshot()), 2.0, 30)
    assert [total(ledger, name, "a") for name in names] == [2, 9, 1]


def test_joined_writes_are_told_of_and_kept() -> None:
    ledger = Ledger(0)
    ledger.fold(readings(Snapshot(sessions=(session("a", 1, 10, joined=4),))), 0.0, 10)
    ledger.fold(readings(Snapshot(sessions=(session("a", 2, 20, joined=5),))), 1.0, 20)
    assert total(ledger, "epfabric.joined", "a") == 9


def test_a_new_session_of_a_group_adds_to_what_the_ended_one_left() -> None:
    ledger = Ledger(0)
    ledger.fold(readings(Snapshot(sessions=(session("a", 1, 100),))), 0.0, 10)
    ledger.fold(readings(Snapshot(sessions=(session("a", 2, 7),))), 1.0, 20)
    assert total(ledger, "epfabric.commands", "a") == 107
    ledger.fold(readings(Snapshot()), 2.0, 30)
    assert total(ledger, "epfabric.commands", "a") == 107
    ledger.fold(readings(Snapshot(sessions=(session("a", 3, 1),))), 3.0, 40)
    assert total(ledger, "epfabric.commands", "a") == 108


def test_counts_of_one_handle_that_begin_again_are_added() -> None:
    ledger = Ledger(0)
    for count in (50, 60, 5):
        ledger.fold(readings(Snapshot(sessions=(session("a", 1, count),))), 0.0, 10)
    assert total(ledger, "epfabric.commands") == 65


def test_a_histogram_of_a_later_epoch_joins_the_earlier_one() -> None:
    ledger = Ledger(0)
    first = Histogram(5, -500, (3, 1), 1, 0.5, 0.0, 0.2)
    second = Histogram(3, -125, (2,), 0, 0.25, 0.1, 0.3)
    for handle, phase in ((1, first), (2, second)):
        barrier = BarrierSample("ns", "a", handle, {"total": phase}, {3: 2})
        ledger.fold(readings(Snapshot(barriers=(barrier,))), 0.0, 10)
    ((_, value),) = [item for item in values(ledger).items() if "duration" in item[0][0]]
    assert isinstance(value, Histogram)
    assert (value.scale, value.count, value.zero_count, value.sum) == (3, 7, 1, 0.75)
    assert total(ledger, "epfabric.barrier.stragglers") == 4


def test_series_end_five_minutes_after_the_session_and_not_before() -> None:
    ledger = Ledger(0)
    ledger.fold(readings(Snapshot(sessions=(session("a", 1, 5),))), 100.0, 10)
    ledger.fold(readings(Snapshot()), 100.0 + LINGER_S - 1, 20)
    assert total(ledger, "epfabric.commands", "a") == 5
    ledger.fold(readings(Snapshot()), 100.0 + LINGER_S, 30)
    assert values(ledger) == {}


def test_a_group_that_returns_after_its_end_begins_at_its_own_start() -> None:
    ledger = Ledger(5)
    ledger.fold(readings(Snapshot(sessions=(session("a", 1, 5),))), 0.0, 10)
    assert {one.start_ns for one in ledger.series() if one.metric.kind == "counter"} == {5}
    ledger.fold(readings(Snapshot()), LINGER_S, 20)
    ledger.fold(readings(Snapshot(sessions=(session("a", 2, 3),))), LINGER_S + 1, 30)
    starts = {one.start_ns for one in ledger.series() if one.metric.kind == "counter"}
    assert starts == {20}
    assert total(ledger, "epfabric.commands", "a") == 3


def test_groups_beyond_the_limit_share_one_label_and_lose_no_count() -> None:
    ledger = Ledger(0)
    many = [f"g{n:03d}" for n in range(MAX_GROUPS + 9)]
    samples = tuple(session(name, n, 10 + n) for n, name in enumerate(many))
    ledger.fold(readings(Snapshot(sessions=samples)), 0.0, 10)
    assert groups(ledger) == {*many[:MAX_GROUPS], OTHER}
    beyond = sum(10 + n for n in range(MAX_GROUPS, len(many)))
    assert total(ledger, "epfabric.commands", OTHER) == beyond
    # One of them ends: what it counted stays.
    ledger.fold(readings(Snapshot(sessions=samples[:-1])), 1.0, 20)
    assert total(ledger, "epfabric.commands", OTHER) == beyond
    # A label that has ended is free for the next group, not for one that counts elsewhere already.
    rest = samples[1:-1]
    ledger.fold(readings(Snapshot(sessions=rest)), LINGER_S + 2, 30)
    newcomer = session("new", 1000, 1)
    ledger.fold(readings(Snapshot(sessions=(*rest, newcomer))), LINGER_S + 3, 40)
    assert groups(ledger) == {*many[1:MAX_GROUPS], "new", OTHER}
    assert total(ledger, "epfabric.commands", OTHER) == beyond


def test_a_group_that_ended_keeps_its_label_until_its_series_end() -> None:
    ledger = Ledger(0)
    many = tuple(session(f"g{n:03d}", n, 1) for n in range(MAX_GROUPS))
    ledger.fold(readings(Snapshot(sessions=many)), 0.0, 10)
    ledger.fold(readings(Snapshot(sessions=many[1:])), 1.0, 20)
    newcomer = session("new", 1000, 1)
    ledger.fold(readings(Snapshot(sessions=(*many[1:], newcomer))), 2.0, 30)
    back = session("g000", 1001, 1)
    ledger.fold(readings(Snapshot(sessions=(*many[1:], newcomer, back))), 3.0, 40)
    assert total(ledger, "epfabric.commands", "g000") == 2
    assert total(ledger, "epfabric.commands", OTHER) == 1
    assert len(groups(ledger)) == MAX_GROUPS + 1


def test_exported_histograms_have_at_most_160_buckets() -> None:
    ledger = Ledger(0)
    wide = Histogram(5, -900, (1,) * 1000, 0, 1.0, 1e-9, 10.0)
    barrier = BarrierSample("ns", "a", 1, {"total": wide})
    ledger.fold(readings(Snapshot(barriers=(barrier,))), 0.0, 10)
    (one,) = ledger.series()
    assert isinstance(one.value, Histogram)
    assert len(one.value.counts) <= 160
    assert one.value.count == 1000


def test_ranks_of_different_groups_do_not_mix_under_the_shared_label() -> None:
    ledger = Ledger(0)
    samples = tuple(session(f"g{n:03d}", n, fifo_depth=1) for n in range(MAX_GROUPS + 2))
    ledger.fold(readings(Snapshot(sessions=samples)), 0.0, 10)
    shared = [
        (dict(attributes)["epfabric.rank"], value)
        for (name, attributes), value in values(ledger).items()
        if name == "epfabric.fifo.depth" and dict(attributes)["epfabric.group"] == OTHER
    ]
    assert shared == [(OTHER, 2)]


def test_attribute_values_beyond_the_limit_are_summed_as_other() -> None:
    ledger = Ledger(0, max_series=8)
    stragglers = {rank: rank + 1 for rank in range(20)}
    for _ in range(2):
        barrier = BarrierSample("ns", "a", 1, {}, stragglers)
        ledger.fold(readings(Snapshot(barriers=(barrier,))), 0.0, 10)
    assert total(ledger, "epfabric.barrier.stragglers") == sum(stragglers.values())
    assert len(values(ledger)) == 9
    # What has ended makes room.
    ledger.fold(readings(Snapshot()), LINGER_S, 20)
    barrier = BarrierSample("ns", "b", 2, {}, dict.fromkeys(range(8), 1))
    ledger.fold(readings(Snapshot(barriers=(barrier,))), LINGER_S, 30)
    assert OTHER not in {dict(attributes)["epfabric.rank"] for _, attributes in values(ledger)}


def test_a_gauge_ends_with_its_session() -> None:
    ledger = Ledger(0)
    ledger.fold(readings(Snapshot(sessions=(session("a", 1, fifo_depth=7),))), 0.0, 10)
    assert total(ledger, "epfabric.fifo.depth") == 7
    ledger.fold(readings(Snapshot()), 1.0, 20)
    assert [name for name, _ in values(ledger) if name == "epfabric.fifo.depth"] == []


@pytest.mark.parametrize("seed", [random.SystemRandom().randrange(2**32) for _ in range(4)])
def test_no_history_of_sessions_makes_a_counter_fall_or_forget(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    ledger, handle, now = Ledger(0), 0, 0.0
    live: dict[int, tuple[str, int]] = {}
    truth: dict[str, int] = defaultdict(int)
    before: Values = {}
    for step in range(200):
        now += rng.uniform(0, 5)
        for ended in [h for h in live if rng.random() < 0.1]:
            del live[ended]
        if rng.random() < 0.5:
            handle += 1
            live[handle] = (f"g{rng.randrange(80)}", 0)
        for h, (group, count) in live.items():
            grown = rng.randrange(100)
            live[h] = (group, count + grown)
            truth["writes"] += grown
        sessions = tuple(
            session(group, h, 0, peers=(PeerSample(f"n{h % 3}", "loopback", count, 0, 0),))
            for h, (group, count) in live.items()
        )
        # Time never reaches the end of a series here, so nothing may be forgotten.
        ledger.fold(readings(Snapshot(sessions=sessions)), min(now, LINGER_S - 1), step)
        assert total(ledger, "epfabric.writes") == truth["writes"]
        after = {k: v for k, v in values(ledger).items() if k[0] == "epfabric.writes"}
        for key, value in before.items():
            assert isinstance(value, int)
            assert isinstance(after[key], int)
            assert after[key] >= value  # type: ignore[operator]
        before = after


def test_every_metric_has_a_name_of_its_own_and_a_unit() -> None:
    assert len({info.name for info in METRICS}) == len(METRICS)
    assert all(info.unit and info.description for info in METRICS)


def test_masked_ranks_are_told_by_the_coordinator_alone_and_end_with_the_epoch() -> None:
    ledger = Ledger(0)
    here = BarrierSample("ns", "a", 1, {}, masked=2)
    elsewhere = BarrierSample("ns", "b", 2, {})
    ledger.fold(readings(Snapshot(barriers=(here, elsewhere))), 0.0, 10)
    found = {dict(a)["epfabric.group"]: v for (n, a), v in values(ledger).items() if "masked" in n}
    assert found == {"a": 2}
    ledger.fold(readings(Snapshot(sessions=(session("a", 3, masked=5),))), 1.0, 20)
    assert not [name for name, _ in values(ledger) if name == "epfabric.group.masked"]
    results = {
        dict(attributes)["epfabric.result"]: value
        for (name, attributes), value in values(ledger).items()
        if name == "epfabric.commands" and value
    }
    assert results == {"masked": 5}
