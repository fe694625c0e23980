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
from epfabric_operator.authority import Authority, check_authority, make_authority
from epfabric_operator.csr import AskingNode, Refused, asking_node, check, is_open, node_facts

NAMESPACE = "epfabric-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:epfabric-agent"
USAGES = ["digital signature", "key encipherment", "client auth", "server auth"]
NOW = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
NODE = AskingNode("moe", frozenset(map(ipaddress.ip_address, ["10.0.0.1", "fd00::1"])))
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
        (request(pem(addresses=("10.0.0.2",))), "WrongAddress"),
        (request(pem(addresses=("10.0.0.1", "10.0.0.2"))), "WrongAddress"),
        (request(pem(uri="spiffe://x")), "WrongNames"),
        (request(pem(common_name="epfabric:agent:n2")), "WrongSubject"),
        (request(pem(key=rsa.generate_private_key(65537, 1024))), "WeakKey"),
    ],
)
def test_is_refused(csr: dict[str, Any], reason: str) -> None:
    with pytest.raises(Refused) as caught:
        check(csr, NAMESPACE, NODE)
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("asked", "granted"), [(None, 86400), (3600, 3600), (1, 600), (10**9, 86400)]
)
def test_what_is_signed_is_what_was_checked(asked: int | None, granted: int) -> None:
    found = check(request(expirationSeconds=asked), NAMESPACE, NODE)
    authority = make_authority(NOW)
    certificate = x509.load_pem_x509_certificate(authority.sign(found, NOW))
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    assert certificate.not_valid_after_utc == NOW + datetime.timedelta(seconds=granted)
    assert certificate.public_key() == KEY.public_key()
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert alternatives.value.get_values_for_type(x509.DNSName) == ["n1.moe.agents.epfabric.io"]
    assert [str(a) for a in alternatives.value.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00:0::1"])
def test_each_address_of_the_node_may_stand_in_its_certificate(address: str) -> None:
    found = check(request(pem(addresses=(address,))), NAMESPACE, NODE)
    assert found.addresses == (ipaddress.ip_address(address),)


def test_a_refused_address_names_those_that_would_do() -> None:
    with pytest.raises(Refused, match=r"10\.9\.9\.9 is no address of node n1.*10\.0\.0\.1"):
        check(request(pem(addresses=("10.9.9.9",))), NAMESPACE, NODE)


def test_a_node_that_is_gone_or_reports_nothing_gets_no_certificate() -> None:
    with pytest.raises(Refused, match="does not belong"):
        check(request(), NAMESPACE, None)
    with pytest.raises(Refused, match="which has none"):
        check(request(), NAMESPACE, AskingNode("moe", frozenset()))


def test_a_nodes_facts_are_its_label_and_its_ip_addresses() -> None:
    addresses = [
        {"type": "InternalIP", "address": "10.0.0.1"},
        {"type": "InternalIP", "address": "fd00::1"},
        {"type": "Hostname", "address": "n1"},
    ]
    labelled = {"labels": {names.FABRIC_LABEL: "moe"}}
    assert node_facts({"metadata": labelled, "status": {"addresses": addresses}}) == NODE
    assert node_facts({"metadata": {}}) == AskingNode(None, frozenset())
    assert asking_node(request()) == "n1"
    assert asking_node(request(extra={names.NODE_NAME_EXTRA: ["n1", "n2"]})) is None


def test_a_node_with_dots_is_told_from_its_fabric() -> None:
    csr = request(
        pem(dns=("a.b.c.moe.agents.epfabric.io",), common_name="epfabric:agent:a.b.c"),
        extra={names.NODE_NAME_EXTRA: ["a.b.c"]},
    )
    found = check(csr, NAMESPACE, NODE)
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


def test_an_authority_that_cannot_sign_is_told_before_an_agent_asks() -> None:
    good, other = make_authority(NOW), make_authority(NOW)
    check_authority(good)
    rsa_key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    for bad, says in (
        (Authority(b"nonsense", good.key), "PEM"),
        (Authority(good.certificate, b"nonsense"), "PEM"),
        (Authority(good.certificate, other.key), "not that of the certificate"),
        (Authority(good.certificate, rsa_key), "elliptic-curve"),
    ):
        with pytest.raises(ValueError, match=says):
            check_authority(bad)
