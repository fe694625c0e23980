"""Has the agent's certificate signed by the operator; for kube.mode. Blocks, with a bound."""

from __future__ import annotations

import base64
import secrets
import time

from epfabric_crds import names

from epfabric_agent.kube import paths
from epfabric_agent.kube.api import Api, Object
from epfabric_agent.pki.identity import (
    Credentials,
    NodeIdentity,
    PkiError,
    key_pem,
    new_key,
    signing_request,
)

POLL_S = 0.5
USAGES = ["digital signature", "key encipherment", "client auth", "server auth"]


def request_body(name: str, fabric: str, pem: bytes) -> Object:
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "labels": {names.FABRIC_LABEL: fabric}},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": names.SIGNER,
            "expirationSeconds": names.CERTIFICATE_SECONDS,
            "usages": USAGES,
        },
    }


def obtain(api: Api, namespace: str, identity: NodeIdentity, timeout_s: float) -> Credentials:
    """A new key, in memory only, with its certificate. Raises ApiError, PkiError, TimeoutError."""
    key = new_key()
    name = f"epfabric-{identity.node[:200]}-{secrets.token_hex(4)}"
    pem = signing_request(identity, key)
    api.create(paths.REQUESTS, request_body(name, identity.fabric, pem))
    deadline = time.monotonic() + timeout_s
    while (certificate := issued(api.get(paths.signing_request(name)))) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"the operator did not sign {name} in {timeout_s:g} s: does epfabric-operator run?"
            )
        time.sleep(POLL_S)
    return Credentials(authorities(api, namespace), certificate, key_pem(key))


def issued(request: Object | None) -> bytes | None:
    """The certificate, or None while there is none. Raises PkiError where there never will be."""
    if request is None:
        raise PkiError("the certificate request was deleted before it was signed")
    status = request.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] in ("Denied", "Failed"):
            raise PkiError(
                f"the operator refused the agent's certificate: {condition.get('message', '')}"
            )
    found = status.get("certificate")
    return base64.b64decode(found) if found else None


def authorities(api: Api, namespace: str) -> bytes:
    """The bundle of authorities that agents trust. Raises ApiError, PkiError."""
    bundle = api.get(paths.ca_bundle(namespace))
    text = ((bundle or {}).get("data") or {}).get(names.CA_BUNDLE_KEY)
    if not text:
        raise PkiError(f"ConfigMap {namespace}/{names.CA_BUNDLE} has no {names.CA_BUNDLE_KEY} yet")
    return str(text).encode()
