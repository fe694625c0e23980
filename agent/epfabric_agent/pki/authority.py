"""A certificate authority in a folder, for fabrics without Kubernetes: `epfabric-agent pki`."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from epfabric_agent.pki.identity import (
    Credentials,
    NodeIdentity,
    PkiError,
    alternative_names,
    key_pem,
    new_key,
    subject,
)

CA_CERTIFICATE = "ca.crt"
CA_KEY = "ca.key"
_BACKDATE = datetime.timedelta(minutes=5)  # for machines whose clocks differ


def make_authority(folder: Path, days: int) -> Path:
    """Writes ca.crt and ca.key; refuses to replace an authority that is there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key_file = folder / CA_CERTIFICATE, folder / CA_KEY
    if certificate.exists() or key_file.exists():
        raise PkiError(f"{folder} holds an authority already: remove it first, or use it as it is")
    key = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "epfabric agents")])
    built = _builder(name, name, key.public_key(), days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    built = built.add_extension(_usage(ca=True), critical=True)
    _write(key_file, key_pem(key), 0o600)
    _write(certificate, _pem(built.sign(key, hashes.SHA256())), 0o644)
    return certificate


def issue(folder: Path, identity: NodeIdentity, days: int, out: Path) -> tuple[Path, Path]:
    """Writes `<node>.crt` and `<node>.key` to `out`, and ca.crt beside them."""
    ca_pem, authority, ca_key = _load_authority(folder)
    key = new_key()
    built = _builder(subject(identity), authority.subject, key.public_key(), days)
    built = built.add_extension(alternative_names(identity), critical=False)
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    built = built.add_extension(_usage(ca=False), critical=True)
    built = built.add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        critical=False,
    )
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificate, key_file = out / f"{identity.node}.crt", out / f"{identity.node}.key"
    _write(key_file, key_pem(key), 0o600)
    _write(certificate, _pem(built.sign(ca_key, hashes.SHA256())), 0o644)
    if out.resolve() != folder.resolve():
        _write(out / CA_CERTIFICATE, ca_pem, 0o644)
    return certificate, key_file


def load(folder: Path, node: str) -> Credentials:
    """What `issue` wrote for `node`."""
    paths = (folder / CA_CERTIFICATE, folder / f"{node}.crt", folder / f"{node}.key")
    try:
        return Credentials(*(path.read_bytes() for path in paths))
    except OSError as error:
        raise PkiError(
            f"{error.filename}: {error.strerror}; make it with: epfabric-agent pki issue "
            f"{folder} --node {node} --fabric NAME --address IP"
        ) from error


def _load_authority(
    folder: Path,
) -> tuple[bytes, x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        pem = (folder / CA_CERTIFICATE).read_bytes()
        key = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(pem)
    except OSError as error:
        raise PkiError(
            f"{error.filename}: {error.strerror}; make an authority with: "
            f"epfabric-agent pki init {folder}"
        ) from error
    except ValueError as error:
        raise PkiError(f"{folder} holds no usable authority: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise PkiError(f"{folder / CA_KEY} is no elliptic-curve key: make a new authority")
    return pem, certificate, key


def _builder(
    name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not ca,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, data: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
