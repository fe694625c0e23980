"""Turns the ledger's series into OpenTelemetry data points; pure, called by the reader."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Metric,
    NumberDataPoint,
    Sum,
)

from epfabric_agent.telemetry.histogram import Histogram
from epfabric_agent.telemetry.ledger import Series
from epfabric_agent.telemetry.readings import MetricInfo


def metrics(series: Iterable[Series], time_ns: int) -> list[Metric]:
    """One Metric per name, with the data points of all its series at `time_ns`."""
    by_metric: dict[MetricInfo, list[Series]] = {}
    for one in series:
        by_metric.setdefault(one.metric, []).append(one)
    return [
        Metric(info.name, info.description, info.unit, _data(info, ones, time_ns))
        for info, ones in by_metric.items()
    ]


def _data(
    info: MetricInfo, series: list[Series], time_ns: int
) -> Sum | Gauge | ExponentialHistogram:
    cumulative = AggregationTemporality.CUMULATIVE
    if info.kind == "histogram":
        return ExponentialHistogram([_histogram(one, time_ns) for one in series], cumulative)
    numbers = [_number(one, time_ns) for one in series]
    if info.kind == "gauge":
        return Gauge(numbers)
    return Sum(numbers, cumulative, is_monotonic=True)


def _number(series: Series, time_ns: int) -> NumberDataPoint:
    if isinstance(series.value, Histogram):
        raise TypeError(f"{series.metric.name} is a {series.metric.kind}, not a histogram")
    return NumberDataPoint(dict(series.attributes), series.start_ns, time_ns, series.value)


def _histogram(series: Series, time_ns: int) -> ExponentialHistogramDataPoint:
    value = series.value
    if not isinstance(value, Histogram):
        raise TypeError(f"{series.metric.name} is a histogram, not a number")
    return ExponentialHistogramDataPoint(
        attributes=dict(series.attributes),
        start_time_unix_nano=series.start_ns,
        time_unix_nano=time_ns,
        count=value.count,
        sum=value.sum,
        scale=value.scale,
        zero_count=value.zero_count,
        positive=Buckets(value.offset, value.counts),
        negative=Buckets(0, ()),
        flags=0,
        min=value.minimum,
        max=value.maximum,
    )
