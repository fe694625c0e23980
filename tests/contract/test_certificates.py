"""The operator signs an agent's certificate for its own node and fabric, and nothing else."""

from __future__ import annotations

import base64
import ipaddress
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from contract.stand import NODES_NAMESPACE, Stand
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from epfabric_crds import names
from harness.cluster import Cluster
from harness.kubectl import kubectl
from harness.process import Process

USAGES = ["digital signature", "key encipherment", "client auth", "server auth"]


@dataclass(frozen=True)
class Site:
    stand: Stand
    fabric: str
    node: str
    other: str
    kubeconfig: Path  # of an agent on `node`
    stranger: Path  # of another account on `node`
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )

    def pem(self, node: str, fabric: str, key: Any = None, **more: str) -> bytes:
        """A request; `more` may name another `address`, or an `extra` DNS name."""
        subject = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, names.COMMON_NAME_PREFIX + node)]
        )
        alternatives: list[x509.GeneralName] = [
            x509.DNSName(names.agent_dns_name(node, fabric)),
            x509.IPAddress(ipaddress.ip_address(more.get("address", self.stand.addresses[node]))),
        ]
        if "extra" in more:
            alternatives.append(x509.DNSName(more["extra"]))
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        signed = builder.sign(key or self.key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def file(self, name: str, pem: bytes, kubeconfig: Path, usages: list[str]) -> str:
        full = f"{self.stand.prefix}-{name}"
        body = json.dumps(self.stand.csr(full, pem, usages))
        done = kubectl(kubeconfig, "create", "-f", "-", stdin=body)
        assert done.returncode == 0, done.stderr
        return full

    def answer(self, csr: str, operator: Process) -> dict[str, Any]:
        def status() -> dict[str, Any]:
            found: dict[str, Any] = self.stand.json("get", "csr", csr).get("status", {})
            return found

        def answered() -> bool:
            denied = any(c["type"] == "Denied" for c in status().get("conditions", ()))
            return denied or "certificate" in status()

        self.stand.eventually(answered, f"an answer to {csr}", operator)
        return status()


@pytest.fixture(scope="module")
def site(
    api: Cluster, stand: Stand, operator: Process, tmp_path_factory: pytest.TempPathFactory
) -> Site:
    fabric, node, other = (f"{stand.prefix}-{part}" for part in ("signed", "n1", "n2"))
    stand.node(node, fabric)
    stand.node(other, fabric)
    stand.apply(stand.fabric(fabric))
    stand.eventually(lambda: stand.label(other) == stand.label(node) == fabric, "labels", operator)
    role = [
        "create",
        "clusterrole",
        f"{stand.prefix}-csr",
        "--verb=create",
        "--resource=certificatesigningrequests.certificates.k8s.io",
    ]
    api.kubectl(*role)
    api.kubectl(
        *("create", "clusterrolebinding", f"{stand.prefix}-csr"),
        f"--clusterrole={stand.prefix}-csr",
        *(f"--serviceaccount={NODES_NAMESPACE}:{a}" for a in (names.AGENT_ACCOUNT, "stranger")),
    )
    folder = tmp_path_factory.mktemp("tokens")
    return Site(
        stand,
        fabric,
        node,
        other,
        stand.token_kubeconfig(folder, node),
        stand.token_kubeconfig(folder, node, "stranger"),
    )


def test_an_agents_own_request_is_signed_by_the_published_authority(
    site: Site, operator: Process
) -> None:
    name = site.file("good", site.pem(site.node, site.fabric), site.kubeconfig, USAGES)
    status = site.answer(name, operator)
    assert "certificate" in status, status
    certificate = x509.load_pem_x509_certificate(base64.b64decode(status["certificate"]))
    bundle = site.stand.json("get", "configmap", names.CA_BUNDLE, "-n", NODES_NAMESPACE)
    authority = x509.load_pem_x509_certificate(bundle["data"][names.CA_BUNDLE_KEY].encode())
    certificate.verify_directly_issued_by(authority)
    assert certificate.public_key() == site.key.public_key()
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert alternatives.value.get_values_for_type(x509.DNSName) == [
        names.agent_dns_name(site.node, site.fabric)
    ]
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert life.total_seconds() <= names.CERTIFICATE_SECONDS + 600
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.value.ca is False


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("other-node", "WrongNode"),
        ("other-fabric", "WrongFabric"),
        ("stranger", "WrongAccount"),
        ("administrator", "WrongAccount"),
        ("second-name", "WrongNames"),
        ("other-address", "WrongAddress"),
        ("weak-key", "WeakKey"),
        ("signs-code", "WrongUsages"),
    ],
)
def test_anything_else_is_denied_with_its_reason(
    site: Site, operator: Process, case: str, reason: str
) -> None:
    good = site.pem(site.node, site.fabric)
    weak = rsa.generate_private_key(65537, 1024)
    pem, kubeconfig, usages = {
        "other-node": (site.pem(site.other, site.fabric), site.kubeconfig, USAGES),
        "other-fabric": (site.pem(site.node, "elsewhere"), site.kubeconfig, USAGES),
        "stranger": (good, site.stranger, USAGES),
        "administrator": (good, site.stand.cluster.kubeconfig, USAGES),
        "second-name": (
            site.pem(site.node, site.fabric, extra="kubernetes.default.svc"),
            site.kubeconfig,
            USAGES,
        ),
        "other-address": (
            site.pem(site.node, site.fabric, address=site.stand.addresses[site.other]),
            site.kubeconfig,
            USAGES,
        ),
        "weak-key": (site.pem(site.node, site.fabric, key=weak), site.kubeconfig, USAGES),
        "signs-code": (good, site.kubeconfig, [*USAGES, "code signing"]),
    }[case]
    status = site.answer(site.file(case, pem, kubeconfig, usages), operator)
    assert "certificate" not in status
    (denied,) = status["conditions"]
    assert (denied["type"], denied["reason"]) == ("Denied", reason)
    assert len(denied["message"]) > 20


def test_the_authority_outlives_the_operator(site: Site, operator: Process) -> None:
    def bundle() -> str:
        found = site.stand.json("get", "configmap", names.CA_BUNDLE, "-n", NODES_NAMESPACE)
        return str(found["data"][names.CA_BUNDLE_KEY])

    before = bundle()
    # The running one has the Lease; a second one that leads after it must find the same CA.
    site.stand.delete("configmap", names.CA_BUNDLE, namespace=NODES_NAMESPACE)
    operator.stop()
    with site.stand.operator("second") as second:
        site.stand.eventually(
            lambda: (
                site.stand.find("configmap", names.CA_BUNDLE, "-n", NODES_NAMESPACE) is not None
            ),
            "the bundle",
            second,
        )
        assert bundle() == before
