"""Reads single objects from the API server; for the CSI driver's check of a namespace.

A Kubernetes client library would be most of the driver's memory and start time on every node,
for two GET requests.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_ANSWER_BYTES = 4 << 20


class Unreachable(Exception):
    """The API server did not answer within its time, or refused the driver's identity."""


class ConfigError(ValueError):
    """No usable way to the API server; the message says what is missing."""


@dataclass(frozen=True)
class Access:
    """Where the API server is and who the driver is; the token file is read at every request."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    token: str | None
    token_file: Path | None


def from_cluster(environ: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> Access:
    host = environ.get("KUBERNETES_SERVICE_HOST")
    if not host or not (account / "token").exists():
        raise ConfigError("not in a pod with a service account: give --kubeconfig FILE")
    tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
    port = int(environ.get("KUBERNETES_SERVICE_PORT", "443"))
    return Access(host, port, tls, None, account / "token")


def from_kubeconfig(path: Path) -> Access:
    """The current context's cluster and user: token, token file or client certificate."""
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"]
        server = urlsplit(cluster["server"])
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a usable kubeconfig: {error!r}") from error
    token_file = user.get("tokenFile")
    secure = server.scheme == "https"
    return Access(
        host=server.hostname or "",
        port=server.port or (443 if secure else 80),
        tls=_tls(cluster, user) if secure else None,
        token=user.get("token"),
        token_file=Path(token_file) if token_file else None,
    )


def get(access: Access, path: str, timeout_s: float) -> dict[str, Any] | None:
    """The object at `path`, None if there is none; every other answer is Unreachable."""
    headers = {"Accept": "application/json", "User-Agent": "epfabric-csi"}
    try:
        token = access.token_file.read_text().strip() if access.token_file else access.token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection = _connect(access, timeout_s)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(MAX_ANSWER_BYTES)
        finally:
            connection.close()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise Unreachable(f"GET {path}: {answer.status} {body[:200]!r}")
        found: dict[str, Any] = json.loads(body)
        return found
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unreachable(f"GET {path}: {type(error).__name__}: {error}") from error


def fabric_path(name: str) -> str:
    return f"/apis/epfabric.io/v1alpha1/epfabrics/{quote(name, safe='')}"


def namespace_path(name: str) -> str:
    return f"/api/v1/namespaces/{quote(name, safe='')}"


def _connect(access: Access, timeout_s: float) -> http.client.HTTPConnection:
    if access.tls is None:
        return http.client.HTTPConnection(access.host, access.port, timeout=timeout_s)
    return http.client.HTTPSConnection(
        access.host, access.port, timeout=timeout_s, context=access.tls
    )


def _named(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    for entry in config[kind]:
        if entry["name"] == name:
            found: Mapping[str, Any] = entry
            return found
    raise KeyError(f"no {name!r} among {kind}")


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    authority = cluster.get("certificate-authority-data")
    context = ssl.create_default_context(
        cafile=cluster.get("certificate-authority"),
        cadata=base64.b64decode(authority).decode() if authority else None,
    )
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user.get("client-key"))
    elif "client-certificate-data" in user:
        pair = user["client-certificate-data"], user["client-key-data"]
        with tempfile.NamedTemporaryFile(prefix="epfabric-csi-") as file:
            file.write(b"\n".join(base64.b64decode(part) for part in pair))
            file.flush()
            os.chmod(file.name, 0o600)
            context.load_cert_chain(file.name)
    return context
