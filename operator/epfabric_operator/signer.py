"""Answers agents' CertificateSigningRequests and keeps the CA; called by the work loop."""

from __future__ import annotations

import base64
import datetime
import logging
from dataclasses import dataclass, replace

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
from epfabric_operator.rotation import LIFE, Authorities, settled, turn
from epfabric_operator.webhook_certificate import WebhookCertificate

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Places:
    """Namespaces: agents can read the one of nodes, and nothing of the other."""

    operator: str
    nodes: str


class AuthorityStore:
    """The authorities in their Secret, and the bundle of what agents trust in its ConfigMap."""

    def __init__(self, kube: Kube, places: Places, life: datetime.timedelta = LIFE) -> None:
        """`life`: of the certificates that the authorities sign."""
        self._kube = kube
        self._places = places
        self._wait = settled(life)
        self._secrets = paths.secrets(places.operator)
        self._path = f"{self._secrets}/{names.CA_SECRET}"

    def current(self) -> Authorities:
        """As they should be now: made, replaced in time and published. Raises ApiError."""
        secret = self._kube.get(self._path)
        if secret is None:
            found = Authorities(make_authority(_now()))
            self._kube.create(self._secrets, self._secret(found, None))
            log.info("made the agents' certificate authority")
        else:
            before = self._read(secret)
            found = turn(before, _now(), wait=self._wait)
            if found != before:
                # With the version that was read: another's change in between is an error here.
                self._kube.replace(self._path, self._secret(found, secret["metadata"]))
                log.info("turned the agents' certificate authorities: %s", _told(found))
        self._publish(found)
        return found

    def _read(self, secret: Object) -> Authorities:
        data = {k: base64.b64decode(v) for k, v in (secret.get("data") or {}).items()}
        try:
            found = Authorities(
                Authority(data["tls.crt"], data["tls.key"]),
                Authority(data["next.crt"], data["next.key"]) if "next.crt" in data else None,
                data.get("former.crt"),
                datetime.datetime.fromisoformat(data["former-since"].decode())
                if "former-since" in data
                else None,
            )
            for authority in filter(None, (found.signing, found.following)):
                check_authority(authority)
        except (KeyError, ValueError) as error:
            text = (
                f"Secret {self._places.operator}/{names.CA_SECRET} holds no usable authority"
                f" ({error})"
            )
            raise ApiError(0, "BadSecret", f"{text}: delete it, and a new one is made") from error
        return found

    def _secret(self, found: Authorities, metadata: Object | None) -> Object:
        data = {"tls.crt": found.signing.certificate, "tls.key": found.signing.key}
        if found.following:
            data |= {"next.crt": found.following.certificate, "next.key": found.following.key}
        if found.former and found.since:
            data |= {"former.crt": found.former, "former-since": found.since.isoformat().encode()}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata or {"name": names.CA_SECRET, "namespace": self._places.operator},
            "type": "kubernetes.io/tls",
            "data": {key: _encode(value) for key, value in data.items()},
        }

    def _publish(self, found: Authorities) -> None:
        path = f"{paths.configmaps(self._places.nodes)}/{names.CA_BUNDLE}"
        data = {names.CA_BUNDLE_KEY: found.bundle.decode()}
        before = self._kube.get(path)
        if before and before.get("data") == data:
            return
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.CA_BUNDLE, "namespace": self._places.nodes},
            "data": data,
        }
        self._kube.apply(path, body, names.OPERATOR_MANAGER)


def _told(found: Authorities) -> str:
    if found.following:
        return "a new one is trusted, and will sign when every agent has read it"
    if found.former:
        return "the new one signs, the old one is still trusted"
    return "one signs, and no other is trusted"


class Signer:
    def __init__(
        self,
        kube: Kube,
        places: Places,
        events: EventWriter,
        metrics: Metrics,
        webhook: WebhookCertificate | None = None,
        life: datetime.timedelta = LIFE,
    ) -> None:
        """`webhook`: whose certificate is kept, too. `life`: of agents' certificates, at most."""
        self._kube = kube
        self._webhook = webhook
        self._places = places
        self._store = AuthorityStore(kube, places, life)
        self._most_seconds = int(life.total_seconds())
        self._events = events
        self._metrics = metrics

    def refresh(self) -> None:
        """The authorities, and what they sign unasked, as they should be now. Raises ApiError."""
        found = self._store.current()
        if self._webhook is not None:
            self._webhook.refresh(found)

    def answer(self, name: str) -> None:
        """Sign or deny one request, if it is ours and open. Level-triggered: safe to repeat."""
        csr = self._kube.get(paths.csr(name))
        if csr is None or not is_open(csr):
            return
        authority = self._store.current().signing
        try:
            request = check(csr, self._places.nodes, self._node_of(csr))
        except Refused as refusal:
            self._deny(csr, refusal)
            return
        approved = _with_condition(
            csr, "Approved", "AgentChecked", "account, node and fabric agree"
        )
        csr = self._kube.replace(f"{paths.csr(name)}/approval", approved)
        request = replace(request, seconds=min(request.seconds, self._most_seconds))
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
