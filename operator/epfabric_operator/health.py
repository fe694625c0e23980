"""Health over HTTP, for the kubelet's probes; started by main.py.

/healthz: the process does its work. /readyz: it leads, or stands by to lead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Probe = Callable[[], str | None]  # None, or what is wrong


class HealthServer:
    def __init__(self, port: int, probes: dict[str, Probe]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                probe = probes.get(self.path)
                wrong = probe() if probe else f"paths are {', '.join(probes)}"
                self.send_response(200 if wrong is None else 503 if probe else 404)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.end_headers()
                self.wfile.write(f"{wrong or 'ok'}\n".encode())

            def log_message(self, format: str, *args: object) -> None:
                """Probes come every few seconds; they are no news."""

        self._server = ThreadingHTTPServer(("", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
