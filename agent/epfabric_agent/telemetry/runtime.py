"""Reports the agent's metrics by OTLP while it runs; started, told and ended by the agent's main.

The core counts; every interval one thread takes a snapshot, folds it into the ledger and sends all
series. The SDK reports what belongs to the agent as a whole through observable gauges. Series of
groups and the core's histograms are appended by the reader: the SDK has no asynchronous histogram,
and it would keep the attributes of every group that ever was.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from epfabric_crds.node import NicCount
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Metric, MetricsData, PeriodicExportingMetricReader

from epfabric_agent.telemetry import points
from epfabric_agent.telemetry.collector import CollectorExporter
from epfabric_agent.telemetry.config import TelemetryConfig
from epfabric_agent.telemetry.ledger import Ledger
from epfabric_agent.telemetry.readings import RESULT, readings
from epfabric_agent.telemetry.snapshot import Snapshot, Source

SHUTDOWN_S = 3.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Clock:
    """The two times that telemetry needs; tests give their own."""

    monotonic_s: Callable[[], float] = time.monotonic
    unix_ns: Callable[[], int] = time.time_ns


class _Reader(PeriodicExportingMetricReader):
    """Appends the ledger's metrics to what the SDK collected."""

    def __init__(
        self, exporter: CollectorExporter, interval_s: float, ours: Callable[[], list[Metric]]
    ) -> None:
        self._ours = ours  # before super(), which starts the thread
        super().__init__(
            exporter,
            export_interval_millis=interval_s * 1e3,
            export_timeout_millis=max(interval_s, 1.0) * 1e3,
        )

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> None:
        # One ResourceMetrics and one ScopeMetrics: of two with equal keys the encoder drops one.
        try:
            first, *others = metrics_data.resource_metrics
            scope, *more = first.scope_metrics
            joined = replace(scope, metrics=[*scope.metrics, *self._ours()])
            metrics_data = MetricsData([replace(first, scope_metrics=[joined, *more]), *others])
        except Exception:  # else the SDK's thread would end, and all reporting with it
            _log.exception("the metrics of groups could not be made this time")
        super()._receive_metrics(metrics_data, timeout_millis, **kwargs)


class Telemetry:
    """Counts from the start to the end of the agent; sends while its config has a URL."""

    def __init__(self, source: Source, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._ledger = Ledger(clock.unix_ns())
        self._last = Snapshot()
        self._fails = False
        self._config: TelemetryConfig | None = None
        self._provider: MeterProvider | None = None

    def observe(self) -> None:
        """Takes a snapshot now. To be called right before a session or a group of the core is
        closed, without holding a lock that the source needs: else its last counts are lost."""
        with self._lock:
            try:
                snapshot = self._source()
                now_s, unix_ns = self._clock.monotonic_s(), self._clock.unix_ns()
                self._ledger.fold(readings(snapshot), now_s, unix_ns)
            except Exception:
                if not self._fails:
                    _log.exception("no snapshot for telemetry; the last known counts are sent")
                self._fails = True
                return
            self._fails = False
            self._last = snapshot

    def apply(self, config: TelemetryConfig, timeout_s: float = SHUTDOWN_S) -> None:
        """Reports as `config` says from now on; series go on. Blocks for at most `timeout_s`."""
        if config == self._config:
            return
        self._stop(timeout_s)
        self._config = config
        if not config.url:
            _log.info("metrics are not sent: no endpoint in spec.telemetry or the environment")
            return
        _log.info("metrics go to %s every %g s", config.url, config.interval_s)
        exporter = CollectorExporter(config.url, config.timeout_s)
        reader = _Reader(exporter, config.interval_s, self._metrics)
        self._provider = MeterProvider([reader], config.resource, shutdown_on_exit=False)
        meter = self._provider.get_meter("epfabric_agent")
        meter.create_observable_gauge(
            "epfabric.sessions", [self._sessions], "{session}", "Sessions on this node"
        )
        meter.create_observable_gauge(
            "epfabric.transport.info", [self._transport], "", "The transport in use"
        )
        meter.create_observable_gauge(
            "epfabric.certificate.left", [self._certificate], "s", "Until the certificate ends"
        )
        meter.create_observable_gauge(
            "epfabric.nic.used", [self._nics_used], "{resource}", "What is used of a NIC"
        )
        meter.create_observable_gauge(
            "epfabric.nic.limit", [self._nics_limit], "{resource}", "What a NIC says that it takes"
        )
        meter.create_observable_counter(
            "epfabric.barrier.traces", [self._traces], "{barrier}", "Barriers kept as traces"
        )

    def flush(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Sends everything now instead of at the next interval."""
        if self._provider is not None:
            self._provider.force_flush(timeout_s * 1e3)

    def shutdown(self, timeout_s: float = SHUTDOWN_S) -> None:
        """Sends once more and ends; blocks for at most `timeout_s`, whatever the collector does."""
        self._stop(timeout_s)
        self._config = None

    def _stop(self, timeout_s: float) -> None:
        provider, self._provider = self._provider, None
        if provider is None:
            return
        try:
            provider.shutdown(timeout_s * 1e3)
        except Exception:
            _log.exception("telemetry did not end cleanly; the agent goes on")

    def _metrics(self) -> list[Metric]:
        with self._lock:
            return points.metrics(self._ledger.series(), self._clock.unix_ns())

    def _sessions(self, _: CallbackOptions) -> Iterable[Observation]:
        # The first callback of a collection: what the others and the reader send is of this moment.
        self.observe()
        return [Observation(len(self._last.sessions))]

    def _transport(self, _: CallbackOptions) -> Iterable[Observation]:
        last = self._last
        if not last.transport:
            return []
        attributes = {"epfabric.transport": last.transport, "epfabric.provider": last.provider}
        return [Observation(1, attributes)]

    def _certificate(self, _: CallbackOptions) -> Iterable[Observation]:
        left_s = self._last.certificate_left_s
        return [] if left_s is None else [Observation(left_s)]

    def _nics_used(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count.used, attributes) for count, attributes in self._nics()]

    def _nics_limit(self, _: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(count.limit, attributes)
            for count, attributes in self._nics()
            if count.limit is not None
        ]

    def _nics(self) -> Iterator[tuple[NicCount, dict[str, str]]]:
        for room in self._last.nics:
            counts = {"queue_pairs": room.queue_pairs, "registrations": room.registrations}
            for resource, count in counts.items():
                yield count, {"epfabric.nic": room.device, "epfabric.resource": resource}

    def _traces(self, _: CallbackOptions) -> Iterable[Observation]:
        counts = {"sent": self._last.traces_sent, "lost": self._last.traces_lost}
        return [Observation(count, {RESULT: result}) for result, count in counts.items()]


def start(config: TelemetryConfig, source: Source, clock: Clock | None = None) -> Telemetry:
    """Begins to count, and to report where `config` says."""
    telemetry = Telemetry(source, clock or Clock())
    telemetry.apply(config)
    return telemetry
