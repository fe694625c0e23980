"""Sends metrics to the collector and says once when it is away and once when it is back.

Called by the runtime. All metrics are cumulative, so nothing is kept for a collector that is away:
the next export carries everything.
"""

from __future__ import annotations

import logging
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

_log = logging.getLogger(__name__)
_library_log = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
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


class CollectorExporter(OTLPMetricExporter):
    """OTLP over HTTP to one URL; a failure costs nothing but that export."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self._session = _Session()
        super().__init__(endpoint=url, timeout=timeout_s, session=self._session)
        self._url = url
        self._away = False
        self._ended = False
        _library_log.addFilter(_SILENCE)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Sends one collection; never raises."""
        result = super().export(metrics_data, timeout_millis, **kwargs)
        arrived = result is MetricExportResult.SUCCESS
        if arrived and self._away:
            _log.info("metrics arrive at %s again", self._url)
        elif not arrived and not self._away and not self._ended:
            _log.warning(
                "metrics do not arrive at %s: %s; check that an OTLP/HTTP receiver listens there "
                "(counting goes on, and all counts are sent when it is back)",
                self._url,
                self._session.reason or "they could not be encoded or are too many",
            )
        self._away = not arrived
        return result

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Ends the waiting for another attempt at once; one that runs has the timeout's bound."""
        self._ended = True
        super().shutdown(timeout_millis, **kwargs)
