"""The operator keeps the webhook's certificate and tells the API server who vouches for it."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from contract.stand import NAMESPACE, NODES_NAMESPACE, Stand
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from epfabric_crds import names
from epfabric_operator.serving import issue, pem_of
from harness import helm
from harness.process import Process
from harness.rights import granted, unused

KINDS = {"MutatingWebhookConfiguration", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
NAMES = {"epfabric-inject", "epfabric-webhook-certificate"}
HOST = f"{names.WEBHOOK}.{NAMESPACE}.svc"


def objects() -> list[dict[str, Any]]:
    """The chart's configuration of the webhook, and the operator's rights for it."""
    text = helm.template({"injection": {"mode": "webhook"}}, names.NAMESPACE)
    for ours, here in ((names.NAMESPACE, NAMESPACE), (names.NODES_NAMESPACE, NODES_NAMESPACE)):
        text = text.replace(f"namespace: {ours}", f"namespace: {here}")
    return [
        one
        for one in yaml.safe_load_all(text)
        if one and one["kind"] in KINDS and one["metadata"]["name"] in NAMES
    ]


@pytest.fixture
def signing(stand: Stand) -> Iterator[Process]:
    made = yaml.safe_dump_all(objects())
    stand.cluster.kubectl("apply", "-f", "-", stdin=made)
    process = stand.launch_operator("signing", "--injection=webhook", "--signs-webhook")
    yield process
    process.stop()
    stand.cluster.kubectl("delete", "-f", "-", stdin=made)
    stand.cluster.kubectl("delete", "secret", names.WEBHOOK, "-n", NAMESPACE)


def test_the_webhooks_certificate_is_made_renewed_and_vouched_for(
    stand: Stand, signing: Process
) -> None:
    def secret() -> dict[str, bytes]:
        found = stand.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
        data: dict[str, str] = next(
            (s["data"] for s in found if s["metadata"]["name"] == names.WEBHOOK), {}
        )
        return {key: base64.b64decode(value) for key, value in data.items()}

    def trusted() -> list[x509.Certificate]:
        found = json.loads(
            stand.cluster.kubectl(
                *("get", "mutatingwebhookconfiguration", names.INJECT_POLICY, "-o", "json")
            )
        )
        (webhook,) = found["webhooks"]
        text = base64.b64decode(webhook["clientConfig"].get("caBundle", ""))
        return x509.load_pem_x509_certificates(text) if text else []

    def good() -> bool:
        data, authorities = secret(), trusted()
        if not data or not authorities:
            return False
        certificate = x509.load_pem_x509_certificate(data["tls.crt"])
        key = serialization.load_pem_private_key(data["tls.key"], None)
        certificate.verify_directly_issued_by(authorities[0])
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        assert alternatives.value.get_values_for_type(x509.DNSName) == [HOST]
        return bool(certificate.public_key() == key.public_key())

    stand.eventually(good, "a certificate that the API server trusts", signing)
    first = secret()["tls.crt"]

    # One that is past half its life, and one of nobody, are replaced.
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    stray = issue([HOST], key, None, now, datetime.timedelta(days=1))
    data = {"tls.crt": stray, "tls.key": pem_of(key)}
    patch = {"data": {k: base64.b64encode(v).decode() for k, v in data.items()}}
    stand.cluster.kubectl(
        *("patch", "secret", names.WEBHOOK, "-n", NAMESPACE, "--type=merge"),
        *("-p", json.dumps(patch)),
    )
    stand.eventually(lambda: secret()["tls.crt"] != stray and good(), "another one", signing)
    assert secret()["tls.crt"] != first

    # A chart that is upgraded takes the bundle away for a moment at worst.
    stand.cluster.kubectl(
        *("patch", "mutatingwebhookconfiguration", names.INJECT_POLICY, "--type=json", "-p"),
        json.dumps([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]),
    )
    stand.eventually(good, "the bundle to come again", signing)

    rights, uses = granted(objects()), stand.cluster.audit.uses()
    assert {right.account for right in rights} == {f"{NAMESPACE}:{names.OPERATOR_ACCOUNT}"}
    assert unused(rights, uses, {}) == (set(), set())
