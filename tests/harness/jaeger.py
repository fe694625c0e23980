"""A real Jaeger that takes OTLP and keeps traces in memory; used by the telemetry tier."""

from __future__ import annotations

import datetime
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness import build
from harness.controlplane import free_ports
from harness.process import HarnessError, Process, Processes, wait_until

READY_SECONDS = 60.0
MOST_TRACES = 20_000
SERVERS = (
    "query.http-server",
    "collector.otlp.http",
    "collector.otlp.grpc",
    "query.grpc-server",
    "collector.grpc-server",
    "collector.http-server",
    "admin.http",
)


@dataclass(frozen=True)
class Span:
    """One span as Jaeger tells it."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int]
    resource: Mapping[str, str | int]


class Jaeger:
    """One server on loopback. `otlp` is the base address for an OTLP/HTTP span exporter."""

    def __init__(self, processes: Processes, name: str = "jaeger") -> None:
        self.processes = processes
        self.name = name
        self.url = ""
        self.otlp = ""
        self.process: Process | None = None

    def start(self) -> None:
        """Starts it on free ports, without a trace."""
        program = build.programs("jaeger")["jaeger"]
        ports = dict(zip(SERVERS, free_ports(len(SERVERS)), strict=True))
        self.url = f"http://127.0.0.1:{ports['query.http-server']}"
        self.otlp = f"http://127.0.0.1:{ports['collector.otlp.http']}"
        self.process = self.processes.start(
            self.name,
            [
                program,
                f"--memory.max-traces={MOST_TRACES}",
                "--log-level=warn",
                *(f"--{server}.host-port=127.0.0.1:{port}" for server, port in ports.items()),
            ],
            env={**os.environ, "SPAN_STORAGE_TYPE": "memory"},
        )
        wait_until(self.ready, READY_SECONDS, "Jaeger ready", self.process)

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop()

    def ready(self) -> bool:
        try:
            return "data" in self._get("/api/services")
        except (OSError, HarnessError):
            return False

    def spans(self, since_ns: int, until_ns: int, **attributes: str) -> list[Span]:
        """All spans of the agents' traces that begin between these unix times.

        `attributes` (with _ for .) narrows the traces to those that have a span with them.
        """
        query = {
            "query.service_name": "epfabric-agent",
            "query.start_time_min": _rfc3339(since_ns),
            "query.start_time_max": _rfc3339(until_ns),
            "query.num_traces": str(MOST_TRACES),
        }
        for name, value in attributes.items():
            query[f"query.attributes[{name.replace('_', '.')}]"] = value
        found = self._get("/api/v3/traces?" + urllib.parse.urlencode(query))
        return [
            _span(span, _attributes(resource["resource"]))
            for resource in found.get("result", {}).get("resourceSpans", ())
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                body: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if error.code == 404 and "No traces found" in text:
                return {}
            raise HarnessError(f"Jaeger refused {path}: {text[:500]}") from None
        return body


def _rfc3339(unix_ns: int) -> str:
    whole = datetime.datetime.fromtimestamp(unix_ns // 10**9, datetime.UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{unix_ns % 10**9:09d}Z"


def _span(span: Mapping[str, Any], resource: Mapping[str, str | int]) -> Span:
    return Span(
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        name=span["name"],
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        attributes=_attributes(span),
        resource=resource,
    )


def _attributes(item: Mapping[str, Any]) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    for attribute in item.get("attributes", ()):
        ((kind, value),) = attribute["value"].items()
        found[attribute["key"]] = int(value) if kind == "intValue" else value
    return found
