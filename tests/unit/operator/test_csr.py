"""A certificate request is signed only for the node that the API server says is asking."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from epfabric_crds import names
from epfabric_operator.authority import make_authority
from epfabric_operator.csr import Refused, check, is_open

NAMESPACE = "epfabric-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:epfabric-agent"
USAGES = ["digital signature", "key encipherment", "client auth", "server auth"]
NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
KEY = ec.generate_private_key(ec.SECP256R1())


def pem(
    dns: tuple[str, ...] = ("n1.moe.agents.epfabric.io",),
    addresses: tuple[str, ...] = ("10.0.0.1",),
    common_name: str = "epfabric:agent:n1",
    key: Any = KEY,
    uri: str | None = None,
) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in dns]
    alternatives += [x509.IPAddress(ipaddress.ip_address(a)) for a in addresses]
    alternatives += [x509.UniformResourceIdentifier(uri)] if uri else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def request(body: bytes | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "spec": {
            "signerName": names.SIGNER,
            "username": ACCOUNT,
            "extra": {names.NODE_NAME_EXTRA: ["n1"]},
            "usages": USAGES,
            "request": base64.b64encode(pem() if body is None else body).decode(),
            **spec,
        }
    }


@pytest.mark.parametrize(
    ("csr", "reason"),
    [
        (request(username="system:serviceaccount:other:epfabric-agent"), "WrongAccount"),
        (request(username="admin"), "WrongAccount"),
        (request(extra={}), "NoNode"),
        (request(extra=None), "NoNode"),
        (request(extra={names.NODE_NAME_EXTRA: ["n1", "n2"]}), "NoNode"),
        (request(extra={names.NODE_NAME_EXTRA: ["n2"]}), "WrongNode"),
        (request(usages=["client auth"]), "WrongUsages"),
        (request(usages=[*USAGES, "cert sign"]), "WrongUsages"),
        (request(b"nonsense"), "Unreadable"),
        (request(request="%%"), "Unreadable"),
        (request(pem(dns=("n1.other.agents.epfabric.io",))), "WrongFabric"),
        (request(pem(dns=("n1.example.org",))), "WrongNames"),
        (request(pem(dns=())), "WrongNames"),
        (request(pem(dns=("n1.moe.agents.epfabric.io", "x.example.org"))), "WrongNames"),
        (request(pem(addresses=())), "WrongNames"),
        (request(pem(addresses=tuple(f"10.0.0.{i}" for i in range(5)))), "WrongNames"),
        (request(pem(uri="spiffe://x")), "WrongNames"),
        (request(pem(common_name="epfabric:agent:n2")), "WrongSubject"),
        (request(pem(key=rsa.generate_private_key(65537, 1024))), "WeakKey"),
    ],
)
def test_is_refused(csr: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused) as caught:
        check(csr, NAMESPACE, {"n1": "moe", "n2": "moe"})
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("asked", "granted"), [(None, 86400), (3600, 3600), (1, 600), (10**9, 86400)]
)
def test_what_is_signed_is_what_was_checked(asked: int | None, granted: int) -> None:
    found = check(request(expirationSeconds=asked), NAMESPACE, {"n1": "moe"})
    authority = make_authority(NOW)
    certificate = x509.load_pem_x509_certificate(authority.sign(found, NOW))
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    assert certificate.not_valid_after_utc == NOW + datetime.timedelta(seconds=granted)
    assert certificate.public_key() == KEY.public_key()
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert alternatives.value.get_values_for_type(x509.DNSName) == ["n1.moe.agents.epfabric.io"]
    assert [str(a) for a in alternatives.value.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]


def test_a_node_with_dots_is_told_from_its_fabric() -> None:
    csr = request(
        pem(dns=("a.b.c.moe.agents.epfabric.io",), common_name="epfabric:agent:a.b.c"),
        extra={names.NODE_NAME_EXTRA: ["a.b.c"]},
    )
    found = check(csr, NAMESPACE, {"a.b.c": "moe"})
    assert (found.node, found.fabric) == ("a.b.c", "moe")


@pytest.mark.parametrize(
    ("status", "signer", "expected"),
    [
        ({}, names.SIGNER, True),
        (None, names.SIGNER, True),
        ({"conditions": [{"type": "Approved"}]}, names.SIGNER, True),
        ({"conditions": [{"type": "Denied"}]}, names.SIGNER, False),
        ({"conditions": [{"type": "Failed"}]}, names.SIGNER, False),
        ({"certificate": "x"}, names.SIGNER, False),
        ({}, "kubernetes.io/kubelet-serving", False),
    ],
)
def test_only_open_requests_of_our_signer_are_looked_at(
    status: dict[str, Any] | None, signer: str, expected: bool
) -> None:
    assert is_open({"spec": {"signerName": signer}, "status": status}) is expected
