"""Kept barriers become spans that fit together, and arrive, wait or are counted; over real HTTP."""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Mapping

import pytest
from epfabric_agent.telemetry import traces as module
from epfabric_agent.telemetry.config import TelemetryConfig
from epfabric_agent.telemetry.spans import (
    BARRIER,
    LAST_RANK,
    NODE,
    NODE_SPAN,
    PARTS,
    ROOT_SPAN,
    KeptBarrier,
    from_core,
    span_id,
    spans_of,
)
from epfabric_agent.telemetry.traces import BATCH, MOST_A_LOOK, MOST_WAITING, TakenKept, Traces
from harness.otlp_receiver import receiving
from opentelemetry.sdk.trace import ReadableSpan

END_S = 10.0
SPANS_A_BARRIER = 1 + len(PARTS)


def kept(number: int) -> KeptBarrier:
    ends = tuple(1_000_000 * number + k for k in range(1, 2 + len(PARTS)))
    return KeptBarrier("ns", "g", secrets.token_bytes(16), 1, number, False, 0, ends[0] - 1, ends)


class Core:
    """Stands where the core's ring is: gives barriers in order, as many as are asked for."""

    def __init__(self, count: int, overwritten: int = 0) -> None:
        self.count = count
        self.overwritten = overwritten
        self.most_asked = 0

    def __call__(self, positions: Mapping[int, int], limit: int) -> list[TakenKept]:
        self.most_asked = max(self.most_asked, limit)
        begin = positions.get(7, 0)
        end = min(begin + limit, self.count)
        lost, self.overwritten = self.overwritten, 0
        return [TakenKept(7, end, lost, tuple(kept(n) for n in range(begin, end)))]


def config(url: str, interval_s: float = 0.02) -> TelemetryConfig:
    return TelemetryConfig(url, interval_s, node="n1", fabric="moe")


def place(span: ReadableSpan) -> tuple[object, object]:
    """Of which barrier and node it is."""
    assert span.attributes is not None
    return span.attributes[BARRIER], span.attributes[NODE]


def test_agents_that_know_only_the_trace_id_make_one_tree() -> None:
    trace_id = secrets.token_bytes(16)
    ends = (10, 20, 30, 40, 50)
    leader = KeptBarrier("ns", "g", trace_id, 2, 9, True, 3, 5, ends)
    other = KeptBarrier("ns", "g", trace_id, 2, 9, False, 1, 8, ends)
    spans = [
        span
        for barrier, node in ((leader, "a"), (other, "b"))
        for span in spans_of(barrier, node, config("http://x").resource)
    ]
    assert {span.context.trace_id for span in spans} == {int.from_bytes(trace_id)}
    by_id = {span.context.span_id: span for span in spans}
    assert len(by_id) == len(spans) == 2 * SPANS_A_BARRIER + 1
    (root,) = [span for span in spans if span.parent is None]
    assert (root.name, root.start_time, root.end_time) == (ROOT_SPAN, 5, 50)
    assert root.attributes is not None
    assert root.attributes[LAST_RANK] == 3
    wholes = {place(span): span for span in spans if span.name == NODE_SPAN}
    assert wholes.keys() == {(9, "a"), (9, "b")}
    for span in spans:
        if span.parent is not None:
            parent = root if span.name == NODE_SPAN else wholes[place(span)]
            assert by_id[span.parent.span_id] is parent
    whole = [s for s in spans if s.name != ROOT_SPAN and s.name != NODE_SPAN]
    assert [(s.start_time, s.end_time) for s in whole] == 2 * list(itertools.pairwise(ends))


def test_ids_of_spans_are_never_zero_and_differ() -> None:
    ids = {span_id(bytes([n] * 16), *path) for n in range(50) for path in ((), ("a",), ("a", "b"))}
    assert len(ids) == 150
    assert 0 not in ids


def test_stamps_of_two_threads_that_are_out_of_order_make_no_negative_span() -> None:
    times = {
        "trace_id": bytes(15) + b"\1",
        "epoch": 1,
        "number": 0,
        "last_rank": 2,
        "leads": False,
        "alone": False,
        "kept": True,
        "began_ns": 120,
        "first_ns": 100,
        "entered_ns": 99,
        "posted_ns": 130,
        "network_ns": 129,
        "released_ns": 140,
        "left_ns": 150,
    }
    barrier = from_core(times, "ns", "g")  # type: ignore[arg-type]
    assert barrier.ends_ns == (100, 100, 130, 130, 150)
    assert barrier.began_ns == 100
    assert not barrier.leads


def test_what_is_kept_arrives_once_and_what_was_overwritten_is_counted() -> None:
    core = Core(3 * BATCH + 1, overwritten=5)
    traces = Traces(core)
    with receiving() as collector:
        traces.apply(config(collector.traces_url), END_S)
        collector.wait_for_spans(core.count * SPANS_A_BARRIER)
        core.count += 2
        traces.shutdown(END_S)
        spans = collector.wait_for_spans(core.count * SPANS_A_BARRIER)
    assert len(spans) == core.count * SPANS_A_BARRIER
    assert len({span.span_id for span in spans}) == len(spans)
    assert (traces.sent, traces.lost) == (core.count, 5)
    (resource,) = collector.traces[0].resource_spans
    said = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert said["service.instance.id"] == "n1"


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_collector_that_is_away_costs_one_line_and_bounded_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with receiving() as first:
        port = first.server_port
    core = Core(MOST_WAITING + 200)
    traces = Traces(core)
    traces.apply(config(first.traces_url), END_S)
    end = time.monotonic() + 30
    while not warnings_in(caplog) and time.monotonic() < end:
        time.sleep(0.01)
    traces.observe()
    assert len(traces.batch()) == BATCH
    assert len(traces._waiting) <= MOST_WAITING
    with receiving(port) as second:
        spans = second.wait_for_spans((core.count - traces.lost) * SPANS_A_BARRIER, 60)
        traces.shutdown(END_S)
    assert traces.lost >= 200
    assert len({span.trace_id for span in spans}) + traces.lost == core.count
    lines = warnings_in(caplog)
    assert [r.name for r in lines] == [f"{module.__name__.rpartition('.')[0]}.collector"]
    assert "Connection refused" in lines[0].message
    assert [r.message for r in caplog.records if "again" in r.message] == [
        f"traces arrive at {second.traces_url} again"
    ]


def test_one_look_takes_no_more_than_its_share_and_none_without_an_endpoint() -> None:
    core = Core(10_000)
    traces = Traces(core)
    traces.observe()
    assert core.most_asked == 0
    traces.look()
    assert core.most_asked == MOST_A_LOOK
