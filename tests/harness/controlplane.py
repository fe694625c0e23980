"""A real Kubernetes control plane: etcd, API server, controller manager, scheduler; on loopback,
but for the API server where nodes of its own reach it."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import secrets
import signal
import socket
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from harness import audit, build
from harness.audit import Audit
from harness.process import Process, Processes, wait_until

SERVICE_CIDR = "10.96.0.0/16"
READY_SECONDS = 300.0  # a few, where nothing else runs
SERVER = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])


@dataclass(frozen=True)
class Place:
    """Where the API server listens, and the names of the nodes that it knows by a token each."""

    address: str = "127.0.0.1"
    port: int = 0  # any free one
    services: str = SERVICE_CIDR
    nodes: tuple[str, ...] = ()


class ControlPlane:
    """Runs in the folder of `processes` and ends with them; `kubeconfig` is an administrator's."""

    def __init__(self, processes: Processes, place: Place | None = None) -> None:
        self.processes = processes
        self.place = place or Place()
        self.folder = processes.folder / "controlplane"
        self.kubeconfig = processes.folder / "admin.kubeconfig"
        self.certificate = self.folder / "apiserver.crt"
        self.audit = Audit(self.folder / "audit.log")
        self.token = secrets.token_urlsafe(24)
        self.node_tokens = {name: secrets.token_urlsafe(24) for name in self.place.nodes}
        self.port = 0
        self._etcd_port = 0
        self._server: Process | None = None

    @property
    def url(self) -> str:
        return f"https://{self.place.address}:{self.port}"

    def start(self, controllers: bool = True) -> None:
        programs = build.programs("controlplane")
        self.folder.mkdir(mode=0o700)
        free, self._etcd_port, peer_port, *ports = free_ports(5)
        self.port = self.place.port or free
        self._write_credentials()
        etcd = self._start_etcd(programs["etcd"], self._etcd_port, peer_port)
        server = self.start_api_server(etcd)
        if controllers:
            self._start_controllers(server, programs, ports)

    def _start_controllers(
        self, server: Process, programs: Mapping[str, Path], ports: list[int]
    ) -> None:
        common = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"]
        manager = self.processes.start(
            "kube-controller-manager",
            [
                programs["kube-controller-manager"],
                *common,
                f"--secure-port={ports[0]}",
                "--bind-address=127.0.0.1",
                f"--service-account-private-key-file={self.folder / 'accounts.key'}",
                f"--root-ca-file={self.certificate}",
                "--use-service-account-credentials=true",
                "--node-monitor-grace-period=20s",
            ],
        )
        scheduler = self.processes.start(
            "kube-scheduler",
            [
                programs["kube-scheduler"],
                *common,
                f"--secure-port={ports[1]}",
                "--bind-address=127.0.0.1",
            ],
        )
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        running = (server, manager, scheduler)
        wait_until(lambda: self.get(account) != b"", READY_SECONDS, "the default account", *running)

    def get(self, path: str) -> bytes:
        """The body of a GET as administrator; empty where the server does not answer with 200."""
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {self.token}"}
        )
        trust = ssl.create_default_context(cafile=str(self.certificate))
        try:
            with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
                body: bytes = answer.read()
                return body
        except OSError:
            return b""

    def _start_etcd(self, program: Path, port: int, peer_port: int) -> Process:
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
        return self.processes.start(
            "etcd",
            [
                program,
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )

    def kill_api_server(self) -> None:
        """As a crash; start_api_server() brings it back with all that it knew."""
        assert self._server is not None
        self._server.signal(signal.SIGKILL)
        self._server.wait(READY_SECONDS)

    def start_api_server(self, *others: Process) -> Process:
        """Ready when this returns. `others`: whose end is an error as well."""
        self._server = self._run_api_server(build.programs("controlplane")["kube-apiserver"])
        ready = lambda: self.get("/readyz") == b"ok"  # noqa: E731
        wait_until(ready, READY_SECONDS, "/readyz", self._server, *others)
        return self._server

    def _run_api_server(self, program: Path) -> Process:
        return self.processes.start(
            "kube-apiserver",
            [
                program,
                f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
                f"--bind-address={self.place.address}",
                f"--advertise-address={self.place.address}",
                "--endpoint-reconciler-type=none",
                f"--secure-port={self.port}",
                f"--tls-cert-file={self.certificate}",
                f"--tls-private-key-file={self.folder / 'apiserver.key'}",
                f"--cert-dir={self.folder}",
                f"--token-auth-file={self.folder / 'tokens.csv'}",
                f"--service-account-key-file={self.folder / 'accounts.key'}",
                f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-cluster-ip-range={self.place.services}",
                f"--kubelet-client-certificate={self.folder / 'kubelet-client.crt'}",
                f"--kubelet-client-key={self.folder / 'kubelet-client.key'}",
                f"--audit-policy-file={self.folder / 'audit.yaml'}",
                f"--audit-log-path={self.audit.path}",
                "--audit-log-maxsize=4096",  # MB: or it begins anew, and what was used is lost
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                "--kubelet-preferred-address-types=InternalIP",
                "--profiling=false",
            ],
        )

    def _write_credentials(self) -> None:
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(audit.POLICY))
        accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.folder / "accounts.key").write_bytes(pem_of(accounts))
        (self.folder / "tokens.csv").write_text(self._tokens())
        key, client = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
        (self.folder / "apiserver.key").write_bytes(pem_of(key))
        (self.folder / "kubelet-client.key").write_bytes(pem_of(client))
        certificate = serving_certificate(key, self.place)
        (self.folder / "kubelet-client.crt").write_bytes(kubelet_client(client, key))
        self.certificate.write_bytes(certificate)
        self.kubeconfig.write_text(yaml.safe_dump(admin_config(self.url, certificate, self.token)))
        self.kubeconfig.chmod(0o600)

    def _tokens(self) -> str:
        """token, user, uid, groups; a node's user is what the Node authorizer expects."""
        lines = [f'{self.token},admin,admin,"system:masters"']
        for name, token in self.node_tokens.items():
            lines.append(f'{token},system:node:{name},{name},"system:nodes"')
        return "\n".join(lines) + "\n"


def pem_of(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def serving_certificate(key: ec.EllipticCurvePrivateKey, place: Place) -> bytes:
    """Self-signed, for loopback and the names and addresses that pods and nodes use; PEM."""
    names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.DNSName("kubernetes.default")]
    service = str(next(ipaddress.ip_network(place.services).hosts()))
    addresses = sorted({"127.0.0.1", place.address, service})
    names += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in addresses]
    certificate = (
        certificate_of(SERVER, key.public_key(), SERVER)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def kubelet_client(key: ec.EllipticCurvePrivateKey, issuer: ec.EllipticCurvePrivateKey) -> bytes:
    """By which kubelets know the API server: `kubectl logs` and `exec` go this way; PEM."""
    who = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters"),
            x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver-kubelet-client"),
        ]
    )
    certificate = (
        certificate_of(who, key.public_key(), SERVER)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(issuer, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def certificate_of(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, issuer: x509.Name
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=7))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def admin_config(url: str, certificate: bytes, token: str) -> dict[str, object]:
    authority = base64.b64encode(certificate).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "admin",
        "clusters": [
            {
                "name": "local",
                "cluster": {"server": url, "certificate-authority-data": authority},
            }
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "admin", "context": {"cluster": "local", "user": "admin"}}],
    }


def free_ports(count: int) -> list[int]:
    """TCP ports on loopback that are free now; all are held until all are chosen."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            held = stack.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            ports.append(held.getsockname()[1])
        return ports
