"""Whether an agent's files of keys and certificates can work at all; for manifest.mode at start.

gRPC would only say that a handshake failed, and only when another agent calls.
"""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from epfabric_agent.pki.identity import Credentials, NodeIdentity, PkiError, node_of


def check(own: Credentials, identity: NodeIdentity, now: datetime.datetime) -> None:
    """Raises PkiError, which names the file and what to do."""
    node = identity.node
    authorities = _certificates(own.ca, "ca.crt")
    certificate = _certificates(own.certificate, f"{node}.crt")[0]
    try:
        key = serialization.load_pem_private_key(own.key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _wrong(f"{node}.key holds no PEM key without a password") from error
    if key.public_key() != certificate.public_key():
        raise _wrong(f"{node}.key is not the key of {node}.crt")
    issuers = [a for a in authorities if _issued(certificate, a)]
    if not issuers:
        raise _wrong(f"{node}.crt was not signed by the authority in ca.crt")
    _in_time(certificate, f"{node}.crt", now)
    for issuer in issuers:
        _in_time(issuer, "ca.crt", now)
    found = _names(certificate)
    if node_of(found, identity.fabric) != node:
        listed = ", ".join(found) or "nobody"
        raise _wrong(
            f"{node}.crt is for {listed}, not for node {node} of fabric {identity.fabric} "
            f"({identity.dns_name})"
        )


def _wrong(text: str) -> PkiError:
    return PkiError(f"{text}: make key and certificate anew with epfabric-agent pki issue")


def _certificates(pem: bytes, name: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise _wrong(f"{name} holds no PEM certificate") from error


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _in_time(certificate: x509.Certificate, name: str, now: datetime.datetime) -> None:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= now <= end:
        raise _wrong(
            f"{name} is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, and this "
            f"machine's clock says {now:%Y-%m-%d %H:%M}"
        )


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return []
    return found.value.get_values_for_type(x509.DNSName)
