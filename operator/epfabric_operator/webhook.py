"""`epfabric-operator webhook`: gives annotated pods their volume where no policy can; by main.py.

For clusters without MutatingAdmissionPolicy. It keeps no state: whether a fabric takes pods of a
namespace, it asks the API server for each annotated pod, and the guard's policy refuses the rest.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import os
import signal
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote

from epfabric_crds import EPFabric, MirrorError, names

from epfabric_operator import logs, paths
from epfabric_operator.config import port
from epfabric_operator.health import HealthServer
from epfabric_operator.injection import Object, patch
from epfabric_operator.kube import ApiError, Kube, load_client
from epfabric_operator.serving import FromFolder, HttpsServer

log = logging.getLogger("epfabric_operator.webhook")
PATH = "/mutate"
MOST_BYTES = 8 << 20
ASK_S = 4.0  # below the webhook's timeoutSeconds
EPILOG = """\
exit codes:
  0  stopped by a signal
  1  a port is taken
  2  wrong command line
  4  no access to the cluster
"""


def answer(review: Mapping[str, Any], ask: Callable[[str, str], bool]) -> Object:
    """The AdmissionReview that answers this one. `ask`: may this fabric be used in this namespace?

    It raises ApiError where nobody can say. Raises KeyError, TypeError for what is no review.
    """
    request = review["request"]
    response: Object = {"uid": request["uid"], "allowed": True}
    pod = request["object"]
    annotations = pod["metadata"].get("annotations") or {}
    fabric = annotations.get(names.FABRIC_ANNOTATION)
    try:
        if fabric and ask(fabric, request["namespace"]):
            operations = patch(pod, fabric)
            if operations:
                text = json.dumps(operations).encode()
                response |= {"patchType": "JSONPatch", "patch": base64.b64encode(text).decode()}
    except (ApiError, MirrorError) as error:
        message = f"EPFabric cannot tell whether the pod may use the fabric {fabric}: {error}"
        response |= {"allowed": False, "status": {"code": 503, "message": f"{message}; try again"}}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def may_use(kube: Kube, fabric: str, namespace: str) -> bool:
    """Raises ApiError."""
    found = kube.get(paths.fabric(quote(fabric, safe="")))
    space = kube.get(paths.namespace(namespace))
    if found is None or space is None or found["metadata"].get("deletionTimestamp"):
        return False
    selector = EPFabric.from_dict(found, strict=False).spec.namespace_selector
    return selector.matches(space["metadata"].get("labels") or {})


def serve(port: int, folder: Path, kube: Kube) -> HttpsServer:
    """A server that is not started; raises OSError where the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        server_version = "epfabric-webhook"
        sys_version = ""

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if self.path.partition("?")[0] != PATH:
                self._send(404, {"error": f"the one path is {PATH}"})
            elif not length.isdecimal() or int(length) > MOST_BYTES:
                self._send(413, {"error": f"a review has a Content-Length up to {MOST_BYTES}"})
            else:
                self._review(self.rfile.read(int(length)))

        def _review(self, body: bytes) -> None:
            try:
                told = answer(json.loads(body), lambda f, n: may_use(kube, f, n))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._send(400, {"error": f"this is no AdmissionReview of a pod: {error!r}"})
            else:
                self._send(200, told)

        def _send(self, status: int, told: Object) -> None:
            body = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Every annotated pod comes by; the API server's audit log has them."""

    return HttpsServer(port, FromFolder(folder), Handler)


def main(arguments: Sequence[str]) -> int:
    given = parse(arguments)
    logs.configure(given.log_format, "info")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    contexts = FromFolder(given.certificate)
    try:
        kube = Kube(load_client(given.kubeconfig, "webhook"), ASK_S / 2)
        server = serve(given.port, given.certificate, kube)
        probes = {"/healthz": lambda: None, "/readyz": lambda: _missing(contexts)}
        health = HealthServer(given.health_port, probes)
    except ApiError as error:
        log.error("%s", error)
        return 4
    except OSError as error:
        ports = f"--port {given.port}, --health-port {given.health_port}"
        log.error("cannot listen on %s: %s", ports, error)
        return 1
    server.start("webhook")
    health.start()
    log.info("webhook on port %s, health on port %s", server.port, health.port)
    stop.wait()
    server.close()
    health.close()
    return 0


def _missing(contexts: FromFolder) -> str | None:
    """The certificate comes a moment after the first installation."""
    try:
        contexts()
    except (OSError, ssl.SSLError) as error:
        return f"no certificate to serve with yet: {error}"
    return None


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="epfabric-operator webhook",
        description="Gives annotated pods their volume, where the cluster has no policy that can.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port", type=port, default=9443, help="where the API server calls (default 9443); 0: any"
    )
    parser.add_argument(
        "--health-port", type=port, default=8080, help="/healthz, /readyz (default 8080); 0: any"
    )
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="FOLDER",
        required=True,
        help="folder with tls.crt and tls.key; read again when they change",
    )
    parser.add_argument(
        "--kubeconfig",
        default=os.environ.get("KUBECONFIG") or None,
        help="kubeconfig; without it the pod's service account (env KUBECONFIG)",
    )
    parser.add_argument("--log-format", choices=["text", "json"], default="text")
    return parser.parse_args(arguments)
