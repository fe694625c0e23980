"""Where metrics go and how often; called by the agent when it starts and when its spec changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class TelemetryConfig:
    """Who reports where; an empty `url` turns reporting off."""

    url: str
    """The full URL that metrics are posted to."""
    interval_s: float
    node: str
    fabric: str

    @property
    def timeout_s(self) -> float:
        """The most that one export may take."""
        return min(max(self.interval_s, 1.0), 5.0)


def configure(
    endpoint: str,
    *,
    node: str,
    fabric: str,
    environ: Mapping[str, str],
    interval_s: float = 10.0,
) -> TelemetryConfig:
    """`endpoint` as in spec.telemetry (a base URL), else OpenTelemetry's environment variables.

    Raises ValueError for a URL that cannot be used.
    """
    variables = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    full, base = (environ.get(name, "").strip() for name in variables)
    url = full
    if endpoint:
        url = _metrics_url(endpoint)
    elif base and not full:
        url = _metrics_url(base)
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError(
            f"telemetry endpoint {endpoint or full or base!r} is no http(s) URL; "
            "write it like http://collector.monitoring:4318"
        )
    return TelemetryConfig(url, interval_s, node, fabric)


def _metrics_url(base: str) -> str:
    return base.rstrip("/") + "/v1/metrics"
