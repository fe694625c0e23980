"""An API server that knows fabrics and namespaces only, for the tests of the CSI driver's steps.

What the driver asks a real one is tested in tests/chart/test_csi_permission.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ADMITTED: dict[str, Any] = {"spec": {"namespaceSelector": {}}}


class Answers:
    """`status` is what it answers with; a fabric in `gone` is not there."""

    def __init__(self) -> None:
        self.status = 200
        self.gone: set[str] = set()
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                missing = self.path.rpartition("/")[2] in answers.gone
                self.send_response(404 if missing else answers.status)
                self.end_headers()
                self.wfile.write(json.dumps(ADMITTED).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        server = f"http://127.0.0.1:{self.server.server_address[1]}"
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "none"}}],
        }
        path.write_text(json.dumps(config))
        return path


@contextmanager
def running() -> Iterator[Answers]:
    made = Answers()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
