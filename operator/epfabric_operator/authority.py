"""A certificate authority of the agents: signs what csr.py approved; rotation.py replaces it."""

from __future__ import annotations

import datetime
import secrets
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from epfabric_operator.csr import AgentRequest

AUTHORITY_DAYS = 3650
CLOCK_SKEW = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class Authority:
    """A CA certificate and its key, both in PEM."""

    certificate: bytes
    key: bytes

    def sign(self, request: AgentRequest, now: datetime.datetime) -> bytes:
        """The agent's certificate in PEM. Only what was checked goes into it, nothing is copied."""
        ca = x509.load_pem_x509_certificate(self.certificate)
        key = serialization.load_pem_private_key(self.key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        life = datetime.timedelta(seconds=request.seconds)
        names: list[x509.GeneralName] = [x509.DNSName(request.dns_name)]
        names += [x509.IPAddress(address) for address in request.addresses]
        return (
            x509.CertificateBuilder()
            .subject_name(_name(request.common_name))
            .issuer_name(ca.subject)
            .public_key(request.public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - min(CLOCK_SKEW, life / 4))
            .not_valid_after(now + life)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
                ),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()),
                critical=False,
            )
            .sign(key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )


def check_authority(authority: Authority) -> None:
    """Whether the pair can sign; a ValueError says what is wrong with it."""
    certificate = x509.load_pem_x509_certificate(authority.certificate)
    key = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not an elliptic-curve key")
    if certificate.public_key() != key.public_key():
        raise ValueError("the key is not that of the certificate")


def make_authority(now: datetime.datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f"epfabric:ca:{secrets.token_hex(4)}")  # two are trusted at a time
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
