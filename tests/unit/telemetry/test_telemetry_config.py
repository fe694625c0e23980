"""Where metrics and traces go: spec before environment, base URLs completed, nonsense refused."""

from __future__ import annotations

import pytest
from epfabric_agent.telemetry.config import TelemetryConfig, configure

BASE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
FULL = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"


def made(endpoint: str, environ: dict[str, str]) -> TelemetryConfig:
    return configure(endpoint, node="n", fabric="f", environ=environ)


@pytest.mark.parametrize(
    ("endpoint", "environ", "url"),
    [
        ("", {}, ""),
        ("http://c:4318", {}, "http://c:4318/v1/metrics"),
        ("http://p:9090/api/v1/otlp/", {}, "http://p:9090/api/v1/otlp/v1/metrics"),
        ("", {BASE: "http://e:4318"}, "http://e:4318/v1/metrics"),
        ("", {BASE: "http://e:4318", FULL: "https://m/x"}, "https://m/x"),
        ("http://c:4318", {FULL: "https://m/x"}, "http://c:4318/v1/metrics"),
    ],
)
def test_the_spec_wins_and_only_base_urls_are_completed(
    endpoint: str, environ: dict[str, str], url: str
) -> None:
    assert made(endpoint, environ).url == url


@pytest.mark.parametrize(
    ("endpoint", "environ", "url"),
    [
        ("http://c:4318", {TRACES: "https://t/x"}, "http://c:4318/v1/traces"),
        ("", {BASE: "http://e:4318", FULL: "https://m/x"}, "http://e:4318/v1/traces"),
        ("", {BASE: "http://e:4318", TRACES: "https://t/x"}, "https://t/x"),
    ],
)
def test_traces_have_a_path_and_a_variable_of_their_own(
    endpoint: str, environ: dict[str, str], url: str
) -> None:
    made = configure(endpoint, node="n", fabric="f", environ=environ, signal="traces")
    assert made.url == url


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://c", "http://"])
def test_what_is_no_http_url_is_refused_with_an_example(endpoint: str) -> None:
    with pytest.raises(ValueError, match="write it like http://collector"):
        made(endpoint, {})
