"""A collector for tests: takes metrics and traces by OTLP over HTTP on loopback, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Receiver(ThreadingHTTPServer):
    """Answers 200 to every export; `wait_for` blocks until so many have come."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.requests: list[ExportMetricsServiceRequest] = []
        self.traces: list[ExportTraceServiceRequest] = []
        self.arrived = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/metrics"

    def wait_for(self, count: int, timeout_s: float = 30) -> list[ExportMetricsServiceRequest]:
        with self.arrived:
            if not self.arrived.wait_for(lambda: len(self.requests) >= count, timeout_s):
                raise TimeoutError(f"{len(self.requests)} of {count} exports after {timeout_s} s")
            return list(self.requests)

    @property
    def traces_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/traces"

    def wait_for_spans(self, count: int, timeout_s: float = 30) -> list[Span]:
        """All that have come, once they are so many."""

        def spans() -> list[Span]:
            return [
                span
                for request in self.traces
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]

        with self.arrived:
            if not self.arrived.wait_for(lambda: len(spans()) >= count, timeout_s):
                raise TimeoutError(f"{len(spans())} of {count} spans after {timeout_s} s")
            return spans()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.arrived:
            if self.path == "/v1/traces":
                self.server.traces.append(ExportTraceServiceRequest.FromString(body))
            else:
                self.server.requests.append(ExportMetricsServiceRequest.FromString(body))
            self.server.arrived.notify_all()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the test's own output matters."""


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    server = Receiver(port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
