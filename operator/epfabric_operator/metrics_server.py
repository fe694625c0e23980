"""/metrics of the operator over HTTPS, for those whom the API server lets read it; by main.py."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from epfabric_operator.access import ALLOWED, BUSY, FORBIDDEN, UNKNOWN, Access
from epfabric_operator.serving import Contexts, HttpsServer

PATH = "/metrics"
SAYS = {
    UNKNOWN: "send a token of this cluster: Authorization: Bearer TOKEN",
    FORBIDDEN: "this account may not get the non-resource URL /metrics: bind it to the ClusterRole "
    "epfabric-metrics-reader",
    BUSY: "the API server could not be asked who you are: try again",
}


def serve(
    port: int, contexts: Contexts, access: Access, text: Callable[[], tuple[bytes, str]]
) -> HttpsServer:
    """A server that is not started. `text` gives a body and its content type; raises OSError."""

    class Handler(BaseHTTPRequestHandler):
        server_version = "epfabric-operator"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self._answer(404, f"the one path is {PATH}\n".encode())
                return
            status = access.status(self.headers.get("Authorization"))
            if status == ALLOWED:
                self._answer(status, *text())
            else:
                self._answer(status, f"{SAYS[status]}\n".encode())

        def _answer(
            self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8"
        ) -> None:
            self.send_response(status)
            if status == UNKNOWN:
                self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Scrapes come every few seconds; they are no news."""

    return HttpsServer(port, contexts, Handler)
