"""Sends to the collector, and says once when it is away and once when it is back.

Called by the runtime (metrics) and by traces. An export that fails costs nothing but itself:
metrics are cumulative, and traces keep what did not arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http import metric_exporter, trace_exporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

_log = logging.getLogger(__name__)
_ANSWER_CHARS = 200


class _Silence(logging.Filter):
    """Drops what the library would log at every attempt; we log what changes."""

    def filter(self, record: logging.LogRecord) -> bool:
        return False


_SILENCE = _Silence()


class _Session(requests.Session):
    """Remembers why the last request failed."""

    reason = ""

    def send(self, request: requests.PreparedRequest, **kwargs: Any) -> requests.Response:
        self.reason = ""
        try:
            response = super().send(request, **kwargs)
        except requests.RequestException as error:
            self.reason = str(error)
            raise
        if not response.ok:
            answer = response.text[:_ANSWER_CHARS].strip()
            self.reason = f"HTTP {response.status_code} {response.reason}: {answer}"
        return response


class _Presence:
    """Whether what is sent to one URL arrives."""

    def __init__(self, what: str, url: str, meanwhile: str) -> None:
        """`meanwhile`: what becomes of `what` while the collector is away; for the log."""
        self.session = _Session()
        self.ended = False
        self._what = what
        self._url = url
        self._meanwhile = meanwhile
        self._away = False

    def note(self, arrived: bool) -> None:
        if arrived and self._away:
            _log.info("%s arrive at %s again", self._what, self._url)
        elif not arrived and not self._away and not self.ended:
            _log.warning(
                "%s do not arrive at %s: %s; check that an OTLP/HTTP receiver listens there (%s)",
                self._what,
                self._url,
                self.session.reason or "they could not be encoded or are too many",
                self._meanwhile,
            )
        self._away = not arrived


class CollectorExporter(metric_exporter.OTLPMetricExporter):
    """Metrics by OTLP over HTTP to one URL."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._presence = _Presence(
            "metrics", url, "counting goes on, and all counts are sent when it is back"
        )
        super().__init__(endpoint=url, timeout=timeout_s, session=self._presence.session)
        logging.getLogger(metric_exporter.__name__).addFilter(_SILENCE)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Sends one collection; never raises."""
        result = super().export(metrics_data, timeout_millis, **kwargs)
        self._presence.note(result is MetricExportResult.SUCCESS)
        return result

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Ends the waiting for another attempt at once; one that runs has the timeout's bound."""
        self._presence.ended = True
        super().shutdown(timeout_millis, **kwargs)


class SpanSender(trace_exporter.OTLPSpanExporter):
    """Spans by OTLP over HTTP to one URL."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._presence = _Presence(
            "traces", url, "the last ones wait; spec.telemetry.traces.endpoint sends them elsewhere"
        )
        super().__init__(endpoint=url, timeout=timeout_s, session=self._presence.session)
        logging.getLogger(trace_exporter.__name__).addFilter(_SILENCE)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends one batch; never raises."""
        result = super().export(spans)
        self._presence.note(result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Ends the waiting for another attempt at once; one that runs has the timeout's bound."""
        self._presence.ended = True
        super().shutdown()  # type: ignore[no-untyped-call]
