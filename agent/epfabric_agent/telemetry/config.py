"""Where metrics or traces go, and how often; called when the agent starts or its spec changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource


@dataclass(frozen=True)
class TelemetryConfig:
    """Who reports where; an empty `url` turns reporting off."""

    url: str
    """The full URL that is posted to."""
    interval_s: float
    node: str
    fabric: str

    @property
    def timeout_s(self) -> float:
        """The most that one export may take."""
        return min(max(self.interval_s, 1.0), 5.0)

    @property
    def resource(self) -> Resource:
        """Who speaks: one for everything that the agent sends."""
        return Resource.create(
            {
                "service.name": "epfabric-agent",
                "service.instance.id": self.node,
                "k8s.node.name": self.node,
                "epfabric.fabric": self.fabric,
            }
        )


def configure(
    endpoint: str,
    *,
    node: str,
    fabric: str,
    environ: Mapping[str, str],
    interval_s: float = 10.0,
    signal: Literal["metrics", "traces"] = "metrics",
) -> TelemetryConfig:
    """`endpoint` as in spec.telemetry (a base URL), else OpenTelemetry's environment variables.

    Raises ValueError for a URL that cannot be used.
    """
    variables = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    full, base = (environ.get(name, "").strip() for name in variables)
    url = full
    if endpoint or (base and not full):
        url = f"{(endpoint or base).rstrip('/')}/v1/{signal}"
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError(
            f"telemetry endpoint {endpoint or full or base!r} is no http(s) URL; "
            "write it like http://collector.monitoring:4318"
        )
    return TelemetryConfig(url, interval_s, node, fabric)
