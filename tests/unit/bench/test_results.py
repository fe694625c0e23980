"""From lines of samples to results: grouping in pairs, ratios, limits, the JSON form, the table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from epfabric_bench.report import document, faults_of_form, table
from epfabric_bench.series import LESS, MORE, OURS, Limit, Line, group, parse_line, verdicts


def line(
    side: str, number: int, *samples: float, better: str = LESS, verified: bool = True
) -> Line:
    return Line("8 B", "latency_seconds", "s", better, side, number, verified, samples)


PAIRS = [
    *(line(OURS, number, 3.0, 1.0, 2.0 + number) for number in range(3)),
    *(line("other", number, 4.0, 2.0, 3.0) for number in range(3)),
]


def test_a_line_survives_its_text() -> None:
    text = json.dumps({**vars(line(OURS, 0, 1.5, 2)), "samples": [1.5, 2]})
    assert parse_line(text) == line(OURS, 0, 1.5, 2.0)


@pytest.mark.parametrize("text", ["", "{}", "[1]", "7", '{"case": "x", "samples": [1]}', "Killed"])
def test_what_is_no_line_of_samples_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a line of samples"):
        parse_line(text)


def test_rounds_are_compared_pair_by_pair() -> None:
    (series,) = group(PAIRS)
    assert series.ratios == [2 / 3, 1, 1]
    assert series.ratio == 1
    assert series.value == 3
    assert series.peer_value == 3
    assert series.peer_name == "other"


def test_p99_is_on_the_bad_side_whichever_side_that_is() -> None:
    samples = [float(value) for value in range(1, 101)]
    (less,) = group([line(OURS, 0, *samples)])
    (more,) = group([line(OURS, 0, *samples, better=MORE)])
    assert (less.reached_by(0.5), less.reached_by(0.99)) == (50, 99)
    assert (more.reached_by(0.5), more.reached_by(0.99)) == (51, 2)


@pytest.mark.parametrize(
    "lines",
    [
        [line(OURS, 0, 1.0), line(OURS, 0, 1.0)],
        [line("other", 0, 1.0)],
        [line(OURS, 0, 1.0), line("a", 0, 1.0), line("b", 0, 1.0)],
        [line(OURS, 0, 1.0), line(OURS, 1, 1.0), line("other", 0, 1.0)],
        [line(OURS, 0, 1.0), line(OURS, 1, 1.0, better=MORE)],
    ],
    ids=["twice", "not ours", "two peers", "no pair", "two directions"],
)
def test_lines_that_do_not_fit_together_are_refused(lines: list[Line]) -> None:
    with pytest.raises(ValueError, match="8 B"):
        group(lines)


def test_one_unverified_round_of_either_side_spoils_the_series() -> None:
    for side in (OURS, "other"):
        spoiled = [*PAIRS, line(OURS, 3, 1.0), line("other", 3, 1.0)]
        spoiled = [
            line(one.side, 3, 1.0, verified=False) if (one.side, one.round) == (side, 3) else one
            for one in spoiled
        ]
        (series,) = group(spoiled)
        assert not series.verified


@pytest.mark.parametrize(
    ("better", "bound", "goal", "verdict"),
    [
        (LESS, 3.0, 3.0, "goal reached"),
        (LESS, 3.0, 2.9, "goal missed"),
        (LESS, 2.9, 2.0, "BOUND MISSED"),
        (LESS, None, 2.0, "goal missed"),
        (MORE, 3.0, 3.0, "goal reached"),
        (MORE, 3.0, 3.1, "goal missed"),
        (MORE, 3.1, 4.0, "BOUND MISSED"),
    ],
)
def test_limits_are_met_on_the_edge_and_missed_beyond(
    better: str, bound: float | None, goal: float, verdict: str
) -> None:
    (series,) = group([line(OURS, 0, 3.0, better=better)])
    assert verdicts(series, [Limit("latency_seconds", bound, goal)]) == [verdict]
    assert verdicts(series, [Limit("latency_seconds", bound, goal, case="another")]) == []


def test_a_limit_may_be_on_the_ratio_to_the_peer() -> None:
    (series,) = group(PAIRS)
    assert verdicts(series, [Limit("latency_seconds", 1.5, 1.0, of="ratio")]) == ["goal reached"]
    (alone,) = group([line(OURS, 0, 1.0)])
    with pytest.raises(ValueError, match="no peer"):
        verdicts(alone, [Limit("latency_seconds", 1.5, 1.0, of="ratio")])


def test_a_limit_may_be_on_the_slowest_of_a_hundred() -> None:
    samples = [line(OURS, 0, *(1.0,) * 990, *(4.0,) * 10)]
    (series,) = group(samples)
    (slower,) = group([line(OURS, 0, *(1.0,) * 989, *(4.0,) * 11)])
    limit = [Limit("latency_seconds", None, 3.0, of="p99")]
    assert verdicts(series, limit) == ["goal reached"]
    assert verdicts(slower, limit) == ["goal missed"]


def written(lines: list[Line]) -> dict[str, Any]:
    found = json.loads(json.dumps(document("x", {"cpu": "y"}, group(lines))))
    assert isinstance(found, dict)
    return found


def test_the_document_has_the_form() -> None:
    alone = Line("7 KiB", "rate", "1/s", MORE, OURS, 0, True, (1.0,))
    found = written([*PAIRS, alone])
    assert faults_of_form(found) == []
    first, second = found["results"]
    assert first["peer"] == {"name": "other", "value": 3}
    assert first["verified"] is True
    assert second["peer"] is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda found: found.pop("machine"),
        lambda found: found.update(more=1),
        lambda found: found["results"].clear(),
        lambda found: found["results"][0].pop("p99"),
        lambda found: found["results"][0].update(value="3"),
        lambda found: found["results"][0].update(verified=1),
        lambda found: found["results"][0]["peer"].pop("value"),
    ],
)
def test_each_fault_of_the_form_is_found(spoil: Any) -> None:
    found = written(PAIRS)
    spoil(found)
    assert faults_of_form(found)


def test_the_table_shows_value_peer_ratio_and_a_missed_bound() -> None:
    text = table(group(PAIRS), [Limit("latency_seconds", 2.0, 1.0)])
    head, row = text.splitlines()
    assert head.split()[:4] == ["case", "metric", "unit", "value"]
    assert "other" in row
    assert "1 [0.667, 1]" in row
    assert row.endswith("BOUND MISSED")
