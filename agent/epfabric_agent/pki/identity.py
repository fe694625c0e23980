"""An agent's identity: its key, its certificate request, what a certificate says of a node.

Used by the agent at start, by `epfabric-agent pki`, and by the check of callers.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from epfabric_crds.names import COMMON_NAME_PREFIX, agent_dns_name

SUFFIX = ".agents.epfabric.io"


@dataclass(frozen=True)
class NodeIdentity:
    """Which agent of which fabric, and where it listens."""

    node: str
    fabric: str
    address: str

    @property
    def dns_name(self) -> str:
        return agent_dns_name(self.node, self.fabric)


@dataclass(frozen=True)
class Credentials:
    """PEM texts: the authorities that are trusted, the agent's certificate chain and key."""

    ca: bytes
    certificate: bytes
    key: bytes


class PkiError(ValueError):
    """Keys or certificates that cannot be used; the message says what to do."""


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def subject(identity: NodeIdentity) -> x509.Name:
    # A common name holds 64 characters; a node's name may be longer. The SAN carries it whole.
    text = (COMMON_NAME_PREFIX + identity.node)[:64]
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def alternative_names(identity: NodeIdentity) -> x509.SubjectAlternativeName:
    try:
        address = ipaddress.ip_address(identity.address)
        name = x509.DNSName(identity.dns_name)
    except ValueError as error:
        raise PkiError(
            f"no certificate for node {identity.node!r} at {identity.address!r}: {error}"
        ) from error
    return x509.SubjectAlternativeName([name, x509.IPAddress(address)])


def signing_request(identity: NodeIdentity, key: ec.EllipticCurvePrivateKey) -> bytes:
    """PEM of the certificate request that the operator is asked to sign."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject(identity))
    builder = builder.add_extension(alternative_names(identity), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def node_of(names: Iterable[str], fabric: str) -> str | None:
    """The node that a certificate's alternative names stand for; None if not one of `fabric`."""
    tail = f".{fabric}{SUFFIX}"
    found = {name[: -len(tail)] for name in names if name.endswith(tail) and len(name) > len(tail)}
    return found.pop() if len(found) == 1 else None


def lifetime(certificate: bytes) -> tuple[datetime.datetime, datetime.datetime]:
    """From when until when a PEM certificate is valid (UTC)."""
    loaded = x509.load_pem_x509_certificate(certificate)
    return loaded.not_valid_before_utc, loaded.not_valid_after_utc


def left_s(certificate: bytes, now: datetime.datetime) -> float:
    """Until a PEM certificate ends, in seconds; negative afterwards."""
    return (lifetime(certificate)[1] - now).total_seconds()


def renew_at(certificate: bytes) -> datetime.datetime:
    """Half of its life: then another one is asked for."""
    begin, end = lifetime(certificate)
    return begin + (end - begin) / 2
