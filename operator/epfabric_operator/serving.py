"""HTTPS servers of the operator's programs and their certificates; for metrics_server, webhook.

Each connection has a thread and a bound, and its handshake happens there: who connects and says
nothing holds nobody up.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CONNECTION_S = 10.0
MOST_CONNECTIONS = 64
CLOCK_SKEW = datetime.timedelta(minutes=5)

Contexts = Callable[[], ssl.SSLContext]  # asked at every connection


class HttpsServer:
    """Serves `handler` on `port`, 0 for a free one, until close()."""

    def __init__(
        self, port: int, contexts: Contexts, handler: type[BaseHTTPRequestHandler]
    ) -> None:
        """Raises OSError where the port is taken."""
        room = threading.BoundedSemaphore(MOST_CONNECTIONS)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

            def server_bind(self) -> None:
                if self.address_family == socket.AF_INET6:
                    self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                super().server_bind()

            def process_request_thread(self, request: object, client_address: object) -> None:
                assert isinstance(request, socket.socket)
                with contextlib.suppress(OSError), contextlib.ExitStack() as held:
                    held.callback(request.close)
                    if not room.acquire(blocking=False):
                        return
                    held.callback(room.release)
                    request.settimeout(CONNECTION_S)
                    secure = contexts().wrap_socket(request, server_side=True)
                    held.callback(secure.close)
                    self.finish_request(secure, client_address)

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that misbehaves is no news."""

        self._server = Server(("", port), handler)
        self.port = int(self._server.server_address[1])

    def start(self, name: str) -> None:
        threading.Thread(target=self._server.serve_forever, name=name, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class SelfSigned:
    """A certificate that nobody vouches for, in memory; another one at half its life."""

    LIFE = datetime.timedelta(days=365)

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._lock = threading.Lock()
        self._renew: datetime.datetime | None = None
        self._context: ssl.SSLContext | None = None

    def __call__(self) -> ssl.SSLContext:
        now = datetime.datetime.now(datetime.UTC)
        with self._lock:
            if self._context is None or self._renew is None or now >= self._renew:
                key = ec.generate_private_key(ec.SECP256R1())
                certificate = issue(self._names, key, None, now, self.LIFE)
                self._context = context_of(certificate, pem_of(key))
                self._renew = now + self.LIFE / 2
            return self._context


class FromFolder:
    """`tls.crt` and `tls.key` of a folder, as a Secret is mounted; read again when they change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._seen: tuple[bytes, bytes] | None = None
        self._context: ssl.SSLContext | None = None

    def __call__(self) -> ssl.SSLContext:
        """What was read before stays where nothing better is there. Raises OSError."""
        with self._lock:
            try:
                found = tuple((self._folder / n).read_bytes() for n in ("tls.crt", "tls.key"))
                if found != self._seen:
                    self._context = context_of(*found)
                    self._seen = (found[0], found[1])
            except OSError:
                if self._context is None:
                    raise
            assert self._context is not None
            return self._context


def context_of(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """The key is put on no disk: ssl takes files only. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with _file(certificate) as chain, _file(key) as secret:
        context.load_cert_chain(chain, secret)
    return context


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[str]:
    fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        os.write(fd, data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def issue(
    names: Iterable[str],
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
    now: datetime.datetime,
    life: datetime.timedelta,
) -> bytes:
    """A server's certificate in PEM for DNS names and addresses, self-signed without an issuer."""
    names = list(names)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    signer = issuer[1] if issuer else key
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectAlternativeName([_named(n) for n in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _named(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
