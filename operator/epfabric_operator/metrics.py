"""The operator's metrics; made by main.py, told by the loop, the reconciler and the signer.

They go by OTLP where an endpoint stands in OpenTelemetry's environment variables, and are there to
be read (`text`) for metrics_server.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from epfabric_crds.fabric import NodeCounts
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExportResult,
    MetricReader,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.metrics.view import Aggregation, ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from epfabric_operator.config import Config

log = logging.getLogger(__name__)
MOST_FABRICS = 64
OTHER = "_other"
EXPORT_S = 5.0
SHUTDOWN_S = 3.0
DURATION = "epfabric.operator.reconcile.duration"
BOUNDS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)  # for those who read; OTLP has exponential buckets


class _Exporter(OTLPMetricExporter):
    """Says once when the collector is away and once when it is back; all counts are cumulative."""

    def __init__(self, url: str) -> None:
        exponential: dict[type, Aggregation] = {Histogram: ExponentialBucketHistogramAggregation()}
        super().__init__(endpoint=url, timeout=EXPORT_S, preferred_aggregation=exponential)
        self._url = url
        self._away = False
        logging.getLogger(OTLPMetricExporter.__module__).setLevel(logging.CRITICAL)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **kwargs)
        away = result is not MetricExportResult.SUCCESS
        if away != self._away:
            log.warning("metrics %s at %s", "do not arrive" if away else "arrive again", self._url)
        self._away = away
        return result


class Metrics:
    def __init__(
        self,
        config: Config,
        leads: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leads` says whether this process is the leader now."""
        self._leads = leads
        self._clock = clock
        self._looked: float | None = None
        self._waiting: Callable[[], int] = lambda: 0
        self._fabrics: dict[str, tuple[bool, NodeCounts]] = {}
        provider = self._provider(config)
        meter = provider.get_meter("epfabric_operator")
        self._reconciles = meter.create_counter(
            "epfabric.operator.reconciles", "", "Looks at an object, by how they ended"
        )
        self._duration = meter.create_histogram(
            DURATION, "s", "How long a look took", explicit_bucket_boundaries_advisory=BOUNDS_S
        )
        self._certificates = meter.create_counter(
            "epfabric.operator.certificates", "", "Agents' certificate requests answered"
        )
        for name, act, unit, text in (
            ("leading", self._leading, "", "1 while this process leads"),
            ("queue", self._queue, "", "Objects that wait to be looked at"),
            ("success.age", self._age, "s", "Since the cluster was last read without a fault"),
            ("fabrics", self._count_fabrics, "", "Fabrics by whether they are Ready"),
            ("nodes", self._count_nodes, "", "Nodes by fabric and state"),
        ):
            meter.create_observable_gauge(f"epfabric.operator.{name}", [act], unit, text)

    def _provider(self, config: Config) -> MeterProvider:
        self._registry = CollectorRegistry()
        readers: list[MetricReader] = [
            PrometheusMetricReader(registry=self._registry, scope_info_enabled=False)
        ]
        if config.metrics_url:
            log.info("metrics go to %s", config.metrics_url)
            readers.append(PeriodicExportingMetricReader(_Exporter(config.metrics_url)))
        resource = {
            "service.name": "epfabric-operator",
            "service.instance.id": config.identity.rpartition("_")[0],
        }
        self._sdk = SdkMeterProvider(readers, Resource.create(resource), shutdown_on_exit=False)
        return self._sdk

    def text(self) -> tuple[bytes, str]:
        """All of them as Prometheus reads them, and the content type of that."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4

    def close(self) -> None:
        """Sends once more; bounded, whatever the collector does."""
        try:
            self._sdk.shutdown(SHUTDOWN_S * 1e3)
        except Exception:
            log.exception("metrics did not end cleanly")

    # --- what is told

    def queue(self, waiting: Callable[[], int]) -> None:
        self._waiting = waiting

    def reconciled(self, kind: str, result: str, seconds: float) -> None:
        self._reconciles.add(1, {"epfabric.kind": kind, "epfabric.result": result})
        self._duration.record(seconds, {"epfabric.kind": kind})

    def looked(self) -> None:
        """The whole cluster was read and understood."""
        self._looked = self._clock()

    def certified(self, result: str, reason: str = "") -> None:
        more = {"epfabric.reason": reason} if reason else {}
        self._certificates.add(1, {"epfabric.result": result, **more})

    def fabric(self, name: str, ready: bool, counts: NodeCounts | None) -> None:
        self._fabrics = {**self._fabrics, name: (ready, counts or NodeCounts())}

    def only(self, names: Iterable[str]) -> None:
        """No other fabrics are there."""
        there = set(names)
        self._fabrics = {k: v for k, v in self._fabrics.items() if k in there}

    # --- what is asked at each export

    def _leading(self, _: CallbackOptions) -> list[Observation]:
        return [Observation(int(self._leads()))]

    def _queue(self, _: CallbackOptions) -> list[Observation]:
        return [Observation(self._waiting())] if self._leads() else []

    def _age(self, _: CallbackOptions) -> list[Observation]:
        return [] if self._looked is None else [Observation(self._clock() - self._looked)]

    def _count_fabrics(self, _: CallbackOptions) -> list[Observation]:
        if self._looked is None:
            return []
        ready = [ready for ready, _counts in self._fabrics.values()]
        return [
            Observation(ready.count(value), {"epfabric.ready": str(value).lower()})
            for value in (True, False)
        ]

    def _count_nodes(self, _: CallbackOptions) -> list[Observation]:
        sums: dict[tuple[str, str], int] = {}
        for index, (name, (_ready, counts)) in enumerate(sorted(self._fabrics.items())):
            label = name if index < MOST_FABRICS else OTHER
            for state, count in (
                ("ready", counts.ready),
                ("failing", counts.failing),
                ("not-ready", counts.not_ready),
                ("contested", counts.contested),
            ):
                sums[label, state] = sums.get((label, state), 0) + count
        return [
            Observation(count, {"epfabric.fabric": label, "epfabric.state": state})
            for (label, state), count in sums.items()
        ]
