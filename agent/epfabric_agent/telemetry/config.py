"""Where metrics go and how often; called by the agent when it starts and when its spec changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0}


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
    interval: str = "10s",
) -> TelemetryConfig:
    """`endpoint` as in spec.telemetry (a base URL), else OpenTelemetry's environment variables.

    Raises ValueError for a URL or an interval that cannot be used.
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
    return TelemetryConfig(url, interval_seconds(interval), node, fabric)


def interval_seconds(text: str) -> float:
    """`500ms`, `10s` or `2m` in seconds."""
    match = re.fullmatch(r"([1-9][0-9]{0,6})(ms|s|m)", text)
    if match is None:
        raise ValueError(f"interval {text!r} is not understood; write it like 500ms, 10s or 2m")
    return int(match[1]) * _UNIT_S[match[2]]


def _metrics_url(base: str) -> str:
    return base.rstrip("/") + "/v1/metrics"
