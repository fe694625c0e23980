"""A node for the CSI driver's tests: namespaces as on a real one, and a client like the kubelet.

"Host" is a mount namespace whose kubelet folder is a shared mount. The driver runs in a second
one, a member of the same propagation group, as a container with Bidirectional propagation does.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
from epfabric_agent.proto import csi_pb2, csi_pb2_grpc, registration_pb2_grpc

START_S = 30.0
CALL_S = 30.0


@dataclass(frozen=True)
class Pod:
    """One pod with the volume, as its kubelet knows it."""

    name: str = "moe-0"
    namespace: str = "team-a"
    fabric: str = "moe"
    group: str = "job-1"
    owner: str = "batch/v1 Job moe 1b0e"
    ephemeral: str = "true"
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def uid(self) -> str:
        return f"uid-{self.name}"

    @property
    def volume_id(self) -> str:
        return "csi-" + hashlib.sha256(f"{self.namespace}/{self.uid}".encode()).hexdigest()

    def context(self) -> dict[str, str]:
        return {
            "csi.storage.k8s.io/ephemeral": self.ephemeral,
            "csi.storage.k8s.io/pod.name": self.name,
            "csi.storage.k8s.io/pod.namespace": self.namespace,
            "csi.storage.k8s.io/pod.uid": self.uid,
            "csi.storage.k8s.io/serviceAccount.name": "default",
            "fabric": self.fabric,
            "group": self.group,
            "owner": self.owner,
            **dict(self.extra),
        }


@dataclass
class Node:
    """The folders of a node, its host namespace and the driver that runs on it."""

    folder: Path
    kubeconfig: Path
    host: subprocess.Popen[bytes] | None = None
    driver: subprocess.Popen[bytes] | None = None
    listeners: list[socket.socket] = field(default_factory=list)

    @property
    def kubelet_root(self) -> Path:
        return self.folder / "kubelet"

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    @property
    def endpoint(self) -> Path:
        return self.kubelet_root / "plugins" / "csi.epfabric.io" / "csi.sock"

    @property
    def registration(self) -> Path:
        return self.kubelet_root / "plugins_registry" / "csi.epfabric.io-reg.sock"

    def directory(self, pod: Pod) -> Path:
        return self.state_dir / "volumes" / pod.volume_id

    def record(self, pod: Pod) -> Path:
        return self.state_dir / "records" / f"{pod.volume_id}.json"

    def target(self, pod: Pod) -> Path:
        volumes = self.kubelet_root / "pods" / pod.uid / "volumes"
        return volumes / "kubernetes.io~csi" / "epfabric" / "mount"

    def start_host(self) -> None:
        self.kubelet_root.mkdir(parents=True)
        script = 'mount --bind "$1" "$1" && mount --make-rshared "$1" && echo up && exec sleep inf'
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
        self.host = subprocess.Popen([*command, str(self.kubelet_root)], stdout=subprocess.PIPE)
        assert self.host.stdout is not None
        assert self.host.stdout.readline() == b"up\n", "the host namespace could not be made"

    def start_driver(self) -> None:
        command = [
            *self.in_host("unshare", "--mount", "--propagation", "unchanged"),
            str(Path(sys.executable).with_name("epfabric-csi")),
            *("--endpoint", f"unix://{self.endpoint}"),
            *("--registration-socket", str(self.registration)),
            *("--node", "node-a"),
            *("--state-dir", str(self.state_dir)),
            *("--kubelet-root", str(self.kubelet_root)),
            *("--kubeconfig", str(self.kubeconfig)),
        ]
        self.driver = subprocess.Popen(command, stderr=subprocess.PIPE)
        driver = self.driver
        wait_for(
            lambda: driver.poll() is not None or accepts(self.registration), "the driver's sockets"
        )
        assert driver.poll() is None, (driver.stderr and driver.stderr.read()) or b""

    def stop_driver(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.driver is not None
        if self.driver.poll() is None:
            self.driver.send_signal(number)
        code = self.driver.wait(START_S)
        if self.driver.stderr is not None:
            self.driver.stderr.close()
        return code

    def in_host(self, *command: str) -> list[str]:
        """A command line that runs in the host's mount namespace."""
        assert self.host is not None
        return ["nsenter", f"--target={self.host.pid}", "--mount", *command]

    def host_mounts(self, pod: Pod) -> list[set[str]]:
        """Options of each mount on the pod's target, as the host (and so the pod) sees them."""
        text = subprocess.check_output(self.in_host("cat", "/proc/self/mountinfo"), text=True)
        rows = [line.split(" ") for line in text.splitlines()]
        return [set(row[5].split(",")) for row in rows if row[4] == str(self.target(pod))]

    def bind_agent(self, pod: Pod) -> None:
        """Listens in the volume's directory, as the agent does after reading the record."""
        wait_for(self.record(pod).exists, "the record")
        path = self.directory(pod)
        path_fd = os.open(path, os.O_PATH)
        try:
            name = f"/proc/self/fd/{path_fd}/agent.sock"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listener.bind(name)
            os.chmod(name, 0o666)
            listener.listen(8)
            self.listeners.append(listener)
        finally:
            os.close(path_fd)

    def stop_agent(self) -> None:
        while self.listeners:
            self.listeners.pop().close()

    @contextmanager
    def client(self) -> Iterator[csi_pb2_grpc.NodeStub]:
        with grpc.insecure_channel(f"unix:{self.endpoint}") as channel:
            yield csi_pb2_grpc.NodeStub(channel)

    def publish(self, pod: Pod, **changes: str) -> csi_pb2.NodePublishVolumeResponse:
        """One NodePublishVolume, made as the kubelet makes it; the volume's parent exists."""
        asked = publish_request(self, pod)
        for name, value in changes.items():
            setattr(asked, name, value)
        self.target(pod).parent.mkdir(parents=True, exist_ok=True)
        with self.client() as stub:
            answer: csi_pb2.NodePublishVolumeResponse
            answer = stub.NodePublishVolume(asked, timeout=CALL_S)
            return answer

    def unpublish(self, pod: Pod, **changes: str) -> csi_pb2.NodeUnpublishVolumeResponse:
        asked = csi_pb2.NodeUnpublishVolumeRequest(
            volume_id=pod.volume_id, target_path=str(self.target(pod))
        )
        for name, value in changes.items():
            setattr(asked, name, value)
        with self.client() as stub:
            answer: csi_pb2.NodeUnpublishVolumeResponse
            answer = stub.NodeUnpublishVolume(asked, timeout=CALL_S)
            return answer

    @contextmanager
    def kubelet_plugin_watcher(self) -> Iterator[registration_pb2_grpc.RegistrationStub]:
        with grpc.insecure_channel(f"unix:{self.registration}") as channel:
            yield registration_pb2_grpc.RegistrationStub(channel)

    def close(self) -> None:
        self.stop_agent()
        if self.driver is not None:
            self.stop_driver()
        if self.host is not None:
            self.host.kill()
            self.host.wait(START_S)
            if self.host.stdout is not None:
                self.host.stdout.close()


def publish_request(node: Node, pod: Pod) -> csi_pb2.NodePublishVolumeRequest:
    mode = csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
    return csi_pb2.NodePublishVolumeRequest(
        volume_id=pod.volume_id,
        target_path=str(node.target(pod)),
        volume_capability=csi_pb2.VolumeCapability(
            mount=csi_pb2.VolumeCapability.MountVolume(),
            access_mode=csi_pb2.VolumeCapability.AccessMode(mode=mode),
        ),
        readonly=True,
        volume_context=pod.context(),
    )


def another(pod: Pod, name: str) -> Pod:
    return replace(pod, name=name)


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def wait_for(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + START_S
    while not done():
        assert time.monotonic() < end, f"{what} did not come within {START_S} s"
        time.sleep(0.02)
