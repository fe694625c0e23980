"""The running reporter over real HTTP: what it sends, and that no collector can hurt the agent."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from epfabric_agent.telemetry import runtime
from epfabric_agent.telemetry.config import TelemetryConfig
from epfabric_agent.telemetry.histogram import Histogram
from epfabric_agent.telemetry.runtime import Telemetry
from epfabric_agent.telemetry.snapshot import BarrierSample, SessionSample, Snapshot, Source
from epfabric_crds.node import NicCount, NicRoom
from harness.otlp_receiver import receiving
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)

HOURLY_S = 3600.0
OURS = "epfabric_agent.telemetry"
PAIRS = NicCount(used=36, limit=4096)


def snapshot(commands: int) -> Snapshot:
    phases = {"total": Histogram(5, -500, (commands,), 0, 0.1, 0.01, 0.02)}
    return Snapshot(
        transport="libfabric",
        provider="tcp;ofi_rxm",
        sessions=(SessionSample("ns", "g", 1, 0, {"write": commands}),),
        barriers=(BarrierSample("ns", "g", 1, phases),),
        nics=(NicRoom(device="m0", queue_pairs=PAIRS, registrations=NicCount(used=9)),),
    )


def config(url: str, interval_s: float = HOURLY_S) -> TelemetryConfig:
    return TelemetryConfig(url, interval_s, node="n1", fabric="moe")


@contextmanager
def running(config: TelemetryConfig, source: Source) -> Iterator[Telemetry]:
    telemetry = runtime.start(config, source)
    try:
        yield telemetry
    finally:
        telemetry.shutdown()


def metrics_of(request: ExportMetricsServiceRequest) -> dict[str, Any]:
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric for metric in scope.metrics}


def test_one_export_carries_the_sdks_gauges_and_our_points_under_one_resource() -> None:
    with receiving() as collector, running(config(collector.url), lambda: snapshot(3)) as telemetry:
        telemetry.flush()
        (request,) = collector.wait_for(1)
    attributes = {
        item.key: item.value.string_value
        for item in request.resource_metrics[0].resource.attributes
    }
    assert attributes["service.name"] == "epfabric-agent"
    assert attributes["service.instance.id"] == attributes["k8s.node.name"] == "n1"
    assert attributes["epfabric.fabric"] == "moe"
    metrics = metrics_of(request)
    assert metrics["epfabric.sessions"].gauge.data_points[0].as_int == 1
    info = metrics["epfabric.transport.info"].gauge.data_points[0]
    assert {a.key: a.value.string_value for a in info.attributes} == {
        "epfabric.transport": "libfabric",
        "epfabric.provider": "tcp;ofi_rxm",
    }
    for name, counts in (
        ("used", {"queue_pairs": 36, "registrations": 9}),
        ("limit", {"queue_pairs": 4096}),
    ):
        points = metrics[f"epfabric.nic.{name}"].gauge.data_points
        told = {tuple(a.value.string_value for a in p.attributes): p.as_int for p in points}
        assert told == {("m0", resource): count for resource, count in counts.items()}
    commands = metrics["epfabric.commands"].sum
    assert commands.is_monotonic
    assert commands.aggregation_temporality == 2  # cumulative
    point = commands.data_points[0]
    assert point.as_int == 3
    assert 0 < point.start_time_unix_nano < point.time_unix_nano
    barrier = metrics["epfabric.barrier.duration"].exponential_histogram
    assert barrier.aggregation_temporality == 2
    assert list(barrier.data_points[0].positive.bucket_counts) == [3]


def test_a_collector_that_is_away_costs_one_line_and_gets_everything_when_it_returns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with receiving() as first:
        port = first.server_port
    counts = iter(range(1, 1000))
    telemetry = runtime.start(config(first.url), lambda: snapshot(next(counts)))
    for _ in range(2):
        telemetry.flush()
    with receiving(port) as second:
        for _ in range(2):
            telemetry.flush()
        telemetry.shutdown()
        requests = second.wait_for(3)
    values = [metrics_of(r)["epfabric.commands"].sum.data_points[0].as_int for r in requests]
    assert values == [3, 4, 5], "what was counted while it was away is in the first export"
    lines = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert [r.name for r in lines] == [f"{OURS}.collector"]
    assert "Connection refused" in lines[0].message
    assert [r.message for r in caplog.records if "again" in r.message] == [
        f"metrics arrive at {second.url} again"
    ]


def test_a_collector_that_never_answers_does_not_hold_up_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics"
        telemetry = runtime.start(config(url), lambda: snapshot(1))
        ended = threading.Thread(target=telemetry.shutdown, args=(0.5,))
        ended.start()
        ended.join(60)
        assert not ended.is_alive()


def test_a_source_that_fails_costs_one_line_and_the_last_counts_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[Snapshot] = [snapshot(5)]
    with (
        receiving() as collector,
        running(config(collector.url), lambda: answers.pop()) as telemetry,
    ):
        for _ in range(3):
            telemetry.flush()
        requests = collector.wait_for(3)
        values = [
            metrics_of(r)["epfabric.commands"].sum.data_points[0].as_int for r in requests[:3]
        ]
        assert values == [5, 5, 5]
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


@pytest.mark.parametrize(
    "bad",
    [
        Snapshot(sessions=(None,)),  # type: ignore[arg-type]
        Snapshot(barriers=(BarrierSample("ns", "bad", 9, {"total": 5}),)),  # type: ignore[dict-item]
    ],
    ids=["no-session", "no-histogram"],
)
def test_a_snapshot_that_makes_no_sense_does_not_end_the_reporting(bad: Snapshot) -> None:
    answers = iter([bad])
    with (
        receiving() as collector,
        running(config(collector.url, 0.05), lambda: next(answers, snapshot(7))) as telemetry,
    ):
        telemetry.observe()
        requests = collector.wait_for(3)
    assert all("epfabric.sessions" in metrics_of(request) for request in requests)


def test_what_a_session_counted_last_is_kept_when_it_is_observed_before_its_end() -> None:
    now = [snapshot(40)]
    with receiving() as collector, running(config(collector.url), lambda: now[0]) as telemetry:
        telemetry.observe()
        now[0] = Snapshot()
        telemetry.flush()
        (request,) = collector.wait_for(1)
    metrics = metrics_of(request)
    assert metrics["epfabric.commands"].sum.data_points[0].as_int == 40
    assert metrics["epfabric.sessions"].gauge.data_points[0].as_int == 0


def test_a_new_endpoint_gets_series_that_go_on_where_they_were() -> None:
    now = [snapshot(10)]
    with (
        receiving() as first,
        receiving() as second,
        running(config(first.url), lambda: now[0]) as telemetry,
    ):
        telemetry.flush()
        now[0] = Snapshot()
        telemetry.apply(config(first.url))
        assert len(first.requests) == 1, "the same config again restarts nothing"
        telemetry.apply(config(second.url))
        telemetry.flush()
        old = metrics_of(first.wait_for(1)[0])["epfabric.commands"].sum.data_points[0]
        new = metrics_of(second.wait_for(1)[0])["epfabric.commands"].sum.data_points[0]
        telemetry.apply(config(""))
        telemetry.flush()
        assert len(second.requests) == 2, "the last export comes with the change"
    assert (new.as_int, new.start_time_unix_nano) == (10, old.start_time_unix_nano)
