"""Command line and environment of `epfabric-operator`; used by main.py."""

from __future__ import annotations

import argparse
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from epfabric_crds import names

EPILOG = """\
what the chart's hooks run: epfabric-operator crds | uninstall | check (each has --help)
metrics go by OTLP to OTEL_EXPORTER_OTLP_ENDPOINT (docs/telemetry.md); /metrics shows them to those
whom the API server lets get the non-resource URL /metrics (docs/security.md)

`epfabric-operator webhook --help` tells of the webhook's server

exit codes:
  0  stopped by a signal
  1  a fault of the operator itself; the log has the traceback
  2  wrong command line
  3  lost the Lease, or could not renew it in time; start again
  4  no access to the cluster, or its CRDs are missing
"""


ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True)
class Config:
    agent_image: str
    agent_port: int
    agent_priority_class: str
    agent_pull_policy: str
    kubelet_root: str
    namespace: str
    nodes_namespace: str
    kubeconfig: str | None
    resync_seconds: float
    lease_seconds: int
    certificate_seconds: int
    log_format: str
    log_level: str
    health_port: int
    injection: str
    signs_webhook: bool
    metrics_port: int
    metrics_certificate: Path | None
    identity: str
    metrics_url: str


def parse(arguments: Sequence[str] | None, environ: Mapping[str, str] | None = None) -> Config:
    """Exits with code 2 and a sentence when something is wrong or missing."""
    env = os.environ if environ is None else environ
    parser = argparse.ArgumentParser(
        prog="epfabric-operator",
        description="Reconciles EPFabric resources: labels nodes, runs agents, reports status.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_agents(parser, env)
    parser.add_argument(
        "--namespace",
        default=env.get("EPFABRIC_NAMESPACE", names.NAMESPACE),
        help="where the operator's Lease and the authority's Secret lie"
        f" (env EPFABRIC_NAMESPACE, default {names.NAMESPACE})",
    )
    parser.add_argument(
        "--nodes-namespace",
        default=env.get("EPFABRIC_NODES_NAMESPACE", names.NODES_NAMESPACE),
        help="where agents run, their Leases and what they trust lie"
        f" (env EPFABRIC_NODES_NAMESPACE, default {names.NODES_NAMESPACE})",
    )
    parser.add_argument(
        "--kubeconfig",
        default=env.get("KUBECONFIG") or None,
        help="kubeconfig; without it the pod's service account (env KUBECONFIG)",
    )
    _add_times(parser, env)
    parser.add_argument("--log-format", choices=["text", "json"], default="text")
    parser.add_argument(
        "--log-level", choices=["debug", "info", "warning", "error"], default="info"
    )
    parser.add_argument(
        "--health-port",
        type=port,
        default=env.get("EPFABRIC_HEALTH_PORT", "8080"),
        help="port of /healthz and /readyz; 0 takes a free one and logs it (default 8080)",
    )
    _add_served(parser, env)
    given = parser.parse_args(arguments)
    if not given.agent_image:
        parser.error("--agent-image or EPFABRIC_AGENT_IMAGE must name the agents' image")
    try:
        url = metrics_url(env)
    except ValueError as error:
        parser.error(str(error))
    pod = env.get("POD_NAME") or socket.gethostname()
    return Config(**vars(given), identity=f"{pod}_{uuid.uuid4().hex[:8]}", metrics_url=url)


def _add_times(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    parser.add_argument(
        "--resync-seconds",
        type=_positive,
        default=env.get("EPFABRIC_RESYNC_SECONDS", "10"),
        help="how often everything is looked at again, silent agents among it (default 10)",
    )
    parser.add_argument(
        "--lease-seconds",
        type=_lease,
        default=env.get("EPFABRIC_LEASE_SECONDS", "15"),
        help="how soon another operator takes over from one that is gone (default 15)",
    )
    parser.add_argument(
        "--certificate-seconds",
        type=_life,
        default=env.get("EPFABRIC_CERTIFICATE_SECONDS", str(names.CERTIFICATE_SECONDS)),
        help="how long agents' certificates live, 8 to 86400; agents renew them at half of it;"
        " lower it only while the authority is not being replaced"
        " (env EPFABRIC_CERTIFICATE_SECONDS, default 86400)",
    )


def _add_served(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    parser.add_argument(
        "--metrics-port",
        type=port,
        default=env.get("EPFABRIC_METRICS_PORT", "8443"),
        help="port of /metrics by HTTPS; 0 takes a free one and logs it (default 8443)",
    )
    parser.add_argument(
        "--metrics-certificate",
        type=Path,
        metavar="FOLDER",
        default=env.get("EPFABRIC_METRICS_CERTIFICATE") or None,
        help="folder with tls.crt and tls.key for /metrics; without it a self-signed certificate",
    )
    parser.add_argument(
        "--injection",
        choices=["policy", "webhook"],
        default=env.get("EPFABRIC_INJECTION", "policy"),
        help="what gives pods their volume; webhook binds no policy (env EPFABRIC_INJECTION)",
    )
    parser.add_argument(
        "--signs-webhook",
        action="store_true",
        default=env.get("EPFABRIC_SIGNS_WEBHOOK") == "true",
        help="keep the webhook's certificate, which else somebody else makes"
        " (env EPFABRIC_SIGNS_WEBHOOK=true)",
    )


def _add_agents(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    parser.add_argument(
        "--agent-image",
        default=env.get("EPFABRIC_AGENT_IMAGE"),
        help="image of the agents' DaemonSets (env EPFABRIC_AGENT_IMAGE)",
    )
    parser.add_argument(
        "--agent-port",
        type=port,
        default=env.get("EPFABRIC_AGENT_PORT", "7470"),
        help="port of the agents among themselves; 0 takes a free one (env EPFABRIC_AGENT_PORT)",
    )
    parser.add_argument(
        "--agent-priority-class",
        default=env.get("EPFABRIC_AGENT_PRIORITY_CLASS", "system-node-critical"),
        help="priority class of the agents' pods (env EPFABRIC_AGENT_PRIORITY_CLASS)",
    )
    parser.add_argument(
        "--agent-pull-policy",
        choices=["Always", "IfNotPresent", "Never"],
        default=env.get("EPFABRIC_AGENT_PULL_POLICY", "IfNotPresent"),
        help="when kubelets pull the agents' image (env EPFABRIC_AGENT_PULL_POLICY)",
    )
    parser.add_argument(
        "--kubelet-root",
        type=_folder,
        default=env.get("EPFABRIC_KUBELET_ROOT", names.KUBELET_ROOT),
        help="the kubelets' --root-dir, in which agents find the socket that tells which GPUs pods"
        f" have (env EPFABRIC_KUBELET_ROOT, default {names.KUBELET_ROOT})",
    )


def metrics_url(environ: Mapping[str, str]) -> str:
    """Where metrics go, or nothing. Raises ValueError for what is no http(s) URL."""
    full, base = (environ.get(name, "").strip() for name in ENDPOINTS)
    url = full or (base.rstrip("/") + "/v1/metrics" if base else "")
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError(f"{full or base!r} is no http(s) URL: write it like http://collector:4318")
    return url


def _folder(text: str) -> str:
    if not text.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is no absolute path")
    return text


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return value


def _life(text: str) -> int:
    if not text.isdecimal() or not 8 <= int(text) <= names.CERTIFICATE_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 8 to 86400")
    return int(text)


def _lease(text: str) -> int:
    if not text.isdecimal() or not 3 <= int(text) <= 300:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 3 to 300")
    return int(text)


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
