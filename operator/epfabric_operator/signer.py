"""Answers agents' CertificateSigningRequests and keeps the CA; called by the work loop."""

from __future__ import annotations

import base64
import datetime
import logging

from epfabric_crds import names

from epfabric_operator import paths
from epfabric_operator.authority import Authority, check_authority, make_authority
from epfabric_operator.csr import (
    AskingNode,
    Refused,
    asking_node,
    check,
    is_open,
    node_facts,
)
from epfabric_operator.events import EventWriter
from epfabric_operator.kube import ApiError, Kube, Object
from epfabric_operator.metrics import Metrics

log = logging.getLogger(__name__)


def load_authority(kube: Kube, namespace: str) -> Authority:
    """The CA of the cluster; made by whoever is first. Publishes its certificate for the agents."""
    path = f"{paths.secrets(namespace)}/{names.CA_SECRET}"
    secret = kube.get(path)
    if secret is None:
        made = make_authority(_now())
        data = {"tls.crt": _encode(made.certificate), "tls.key": _encode(made.key)}
        body: Object = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": names.CA_SECRET, "namespace": namespace},
            "type": "kubernetes.io/tls",
            "data": data,
        }
        try:
            secret = kube.create(paths.secrets(namespace), body)
            log.info("made the agents' certificate authority")
        except ApiError as error:
            if error.status != 409:
                raise
            secret = kube.get(path)
    data = (secret or {}).get("data") or {}
    try:
        authority = Authority(
            certificate=base64.b64decode(data["tls.crt"]), key=base64.b64decode(data["tls.key"])
        )
        check_authority(authority, _now())
    except (KeyError, ValueError) as error:
        text = f"Secret {namespace}/{names.CA_SECRET} holds no usable authority ({error})"
        raise ApiError(0, "BadSecret", f"{text}: delete it, and a new one is made") from error
    publish(kube, namespace, authority)
    return authority


def publish(kube: Kube, namespace: str, authority: Authority) -> None:
    path = f"{paths.configmaps(namespace)}/{names.CA_BUNDLE}"
    data = {names.CA_BUNDLE_KEY: authority.certificate.decode()}
    before = kube.get(path)
    if before and before.get("data") == data:
        return
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.CA_BUNDLE, "namespace": namespace},
        "data": data,
    }
    kube.apply(path, body, names.OPERATOR_MANAGER)


class Signer:
    def __init__(self, kube: Kube, namespace: str, events: EventWriter, metrics: Metrics) -> None:
        self._kube = kube
        self._namespace = namespace
        self._events = events
        self._metrics = metrics

    def refresh(self) -> Authority:
        """The authority as the cluster has it now, made and published where it is missing."""
        return load_authority(self._kube, self._namespace)

    def answer(self, name: str) -> None:
        """Sign or deny one request, if it is ours and open. Level-triggered: safe to repeat."""
        csr = self._kube.get(paths.csr(name))
        if csr is None or not is_open(csr):
            return
        authority = self.refresh()
        try:
            request = check(csr, self._namespace, self._node_of(csr))
        except Refused as refusal:
            self._deny(csr, refusal)
            return
        approved = _with_condition(
            csr, "Approved", "AgentChecked", "account, node and fabric agree"
        )
        csr = self._kube.replace(f"{paths.csr(name)}/approval", approved)
        certificate = authority.sign(request, _now())
        csr["status"]["certificate"] = _encode(certificate)
        self._kube.replace(f"{paths.csr(name)}/status", csr)
        self._metrics.certified("signed")
        log.info("signed the certificate of node %s, fabric %s", request.node, request.fabric)

    def _node_of(self, csr: Object) -> AskingNode | None:
        """The asking node, read now: it may have been assigned a moment ago."""
        name = asking_node(csr)
        found = self._kube.get(paths.node(name)) if name else None
        return node_facts(found) if found else None

    def _deny(self, csr: Object, refusal: Refused) -> None:
        name = csr["metadata"]["name"]
        log.warning("denied certificate request %s: %s", name, refusal)
        denied = _with_condition(csr, "Denied", refusal.reason, str(refusal))
        self._kube.replace(f"{paths.csr(name)}/approval", denied)
        self._metrics.certified("refused", refusal.reason)
        self._events.warn(csr, refusal.reason, "Deny", str(refusal))


def _with_condition(csr: Object, type_: str, reason: str, message: str) -> Object:
    condition = {"type": type_, "status": "True", "reason": reason, "message": message}
    status = dict(csr.get("status") or {})
    kept = [c for c in status.get("conditions") or () if c["type"] != type_]
    return {**csr, "status": {**status, "conditions": [*kept, condition]}}


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
