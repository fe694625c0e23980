"""Inline CSI volumes: the stand-in kubelet and the real driver, whose mounts must reach pods."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import csi_client
from harness.cluster import Cluster
from harness.kubelet.api import Json
from harness.kubelet.kubelet import PROJECT
from harness.process import wait_until

from .bench import LABEL, PODS, SPACE, WAIT_S, Running

SETS = f"/apis/apps/v1/namespaces/{SPACE}/daemonsets"
DRIVER = "csi.epfabric.io"
FABRIC = "kubelet-test"
DEFINITIONS = PROJECT / "crds/epfabric_crds/definitions"
KUBELET = "/var/lib/kubelet"
STATE = "/var/lib/epfabric"


RIGHTS = f"""
apiVersion: epfabric.io/v1alpha1
kind: EPFabric
metadata: {{name: {FABRIC}}}
spec:
  nodeSelector: {{{SPACE}: nowhere}}
  namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {SPACE}}}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {SPACE}-csi}}
rules:
- {{apiGroups: [epfabric.io], resources: [epfabrics], verbs: [get]}}
- {{apiGroups: [""], resources: [namespaces], verbs: [get]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {SPACE}-csi}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {SPACE}-csi}}
subjects:
- {{kind: ServiceAccount, name: default, namespace: {SPACE}}}
"""


@pytest.fixture(scope="module")
def permitted(cluster: Cluster, running: Running) -> Iterator[None]:
    """A fabric that the namespace may use, and the right to look at it, as the driver has."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(DEFINITIONS))
    cluster.kubectl("wait", "--for=condition=Established", "-f", str(DEFINITIONS))
    cluster.kubectl("apply", "-f", "-", stdin=RIGHTS)
    yield
    cluster.kubectl("delete", "-f", "-", stdin=RIGHTS)


@pytest.fixture(scope="module")
def driver(running: Running, permitted: None) -> Iterator[None]:
    """The driver on every node."""
    folders = {
        "plugin": f"{KUBELET}/plugins/{DRIVER}",
        "pods": f"{KUBELET}/pods",
        "registration": f"{KUBELET}/plugins_registry",
        "state": STATE,
    }
    mounts: list[Json] = [{"name": name, "mountPath": path} for name, path in folders.items()]
    mounts[1]["mountPropagation"] = "Bidirectional"
    container = {
        "name": "main",
        "image": "none",
        "command": [
            "epfabric-csi",
            f"--endpoint=unix://{KUBELET}/plugins/{DRIVER}/csi.sock",
            f"--registration-socket={KUBELET}/plugins_registry/{DRIVER}-reg.sock",
            f"--kubelet-root={KUBELET}",
            f"--state-dir={STATE}",
        ],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }
    spec = {
        "nodeSelector": {LABEL: "true"},
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
            for name, path in folders.items()
        ],
    }
    template = {"metadata": {"labels": {"app": "csi"}}, "spec": spec}
    body = {"selector": {"matchLabels": {"app": "csi"}}, "template": template}
    running.api.post(
        "/apis/storage.k8s.io/v1/csidrivers",
        {
            "metadata": {"name": DRIVER},
            "spec": {
                "attachRequired": False,
                "podInfoOnMount": True,
                "volumeLifecycleModes": ["Ephemeral"],
            },
        },
    )
    running.api.post(SETS, {"metadata": {"name": "csi"}, "spec": body})
    yield
    running.api.delete(f"{SETS}/csi", {"propagationPolicy": "Foreground"})
    running.api.delete(f"/apis/storage.k8s.io/v1/csidrivers/{DRIVER}", {})
    wait_until(
        lambda: not running.api.get(PODS, labelSelector="app=csi")["items"], WAIT_S, "no driver"
    )


class Listener:
    """Stands where an agent would: binds the socket in a volume's folder and says hello."""

    def __init__(self, folder: Path) -> None:
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with csi_client.open_folder(folder) as fd:
            self.server.bind(f"/proc/self/fd/{fd}/agent.sock")
        (folder / "agent.sock").chmod(0o666)
        self.server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self.server.accept()
                with link:
                    link.send(b"hello from the node")
            except BrokenPipeError:  # the driver's look connects and says nothing
                continue
            except OSError:
                return


READ = """
import socket
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect("/var/run/epfabric/agent.sock")
print(link.recv(100).decode())
print([l.split()[5] for l in open("/proc/self/mountinfo") if l.split()[4] == "/run/epfabric"])
try:
    open("/var/run/epfabric/x", "w")
except OSError as error:
    print(error.strerror)
"""


def record_of(running: Running, name: str, node: str) -> Json | None:
    uid = running.pod(name)["metadata"]["uid"]
    identifier = csi_client.volume_id(uid, "epfabric")
    path = running.kubelet.host_path(node, f"{STATE}/records/{identifier}.json")
    return json.loads(path.read_text()) if path.exists() else None


def test_pod_starts_once_the_agent_listens_and_its_volume_goes_with_it(
    running: Running, driver: None
) -> None:
    running.create(
        "client",
        ["python3", "-c", READ + "\nimport signal; signal.pause()"],
        securityContext={"runAsNonRoot": True},
        volumes=[
            {
                "name": "epfabric",
                "csi": {
                    "driver": DRIVER,
                    "readOnly": True,
                    "volumeAttributes": {"fabric": FABRIC, "group": "g"},
                },
            }
        ],
        container={
            "volumeMounts": [
                {"name": "epfabric", "mountPath": "/var/run/epfabric", "readOnly": True}
            ],
            "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
        },
    )
    wait_until(lambda: "nodeName" in running.pod("client")["spec"], WAIT_S, "the pod has its node")
    node = running.pod("client")["spec"]["nodeName"]
    wait_until(lambda: record_of(running, "client", node) is not None, WAIT_S, "the record")
    record = record_of(running, "client", node)
    assert record is not None
    assert (record["namespace"], record["pod"], record["group"]) == (SPACE, "client", "g")
    assert running.phase("client") == "Pending"
    listener = Listener(running.kubelet.host_path(node, record["directory"]))
    running.await_log("client", "hello from the node")
    running.await_log("client", "Read-only file system")
    options = running.log("client").splitlines()[1]
    assert all(word in options for word in ("ro", "nosuid", "nodev", "noexec"))
    running.delete("client", gracePeriodSeconds=1)
    running.await_gone("client")
    listener.server.close()
    assert record_of_path(running, node, record) is False
    assert not running.kubelet.host_path(node, record["directory"]).exists()
    assert not running.kubelet.host_path(node, record["targetPath"]).exists()


def record_of_path(running: Running, node: str, record: Json) -> bool:
    name = f"{record['volumeId']}.json"
    return running.kubelet.host_path(node, f"{STATE}/records/{name}").exists()


def test_pod_that_never_got_its_volume_can_be_deleted(running: Running, driver: None) -> None:
    running.create(
        "waits",
        ["true"],
        volumes=[
            {
                "name": "epfabric",
                "csi": {"driver": DRIVER, "volumeAttributes": {"fabric": FABRIC}},
            }
        ],
    )
    events = f"/api/v1/namespaces/{SPACE}/events"

    def said() -> bool:
        found = running.api.get(events, fieldSelector="involvedObject.name=waits")["items"]
        return any("has not yet opened" in event["message"] for event in found)

    wait_until(said, WAIT_S, "an event with the driver's reason")
    running.delete("waits")
    running.await_gone("waits")


def test_driver_is_registered_as_the_chart_starts_it(running: Running, driver: None) -> None:
    def told() -> int:
        pods = running.api.get(PODS, labelSelector="app=csi")["items"]
        logs = [running.log(pod["metadata"]["name"]) for pod in pods]
        return sum("the kubelet has registered" in log for log in logs)

    wait_until(lambda: told() == len(running.nodes.names), WAIT_S, "a registration on every node")


def test_pod_ends_only_when_its_volume_is_given_back(running: Running, driver: None) -> None:
    running.create(
        "held",
        ["sleep", "1000"],
        volumes=[
            {
                "name": "epfabric",
                "csi": {"driver": DRIVER, "volumeAttributes": {"fabric": FABRIC}},
            }
        ],
        container={"volumeMounts": [{"name": "epfabric", "mountPath": "/var/run/epfabric"}]},
    )
    wait_until(lambda: "nodeName" in running.pod("held")["spec"], WAIT_S, "the pod has its node")
    node = running.pod("held")["spec"]["nodeName"]
    wait_until(lambda: record_of(running, "held", node) is not None, WAIT_S, "the record")
    record = record_of(running, "held", node)
    assert record is not None
    listener = Listener(running.kubelet.host_path(node, record["directory"]))
    running.await_phase("held", "Running")
    socket_path = running.kubelet.host_path(node, f"{KUBELET}/plugins/{DRIVER}/csi.sock")
    socket_path.rename(socket_path.with_name("away"))
    running.delete("held", gracePeriodSeconds=1)
    events = f"/api/v1/namespaces/{SPACE}/events"

    def said() -> bool:
        found = running.api.get(events, fieldSelector="involvedObject.name=held")["items"]
        return any(event["reason"] == "FailedUnmount" for event in found)

    wait_until(said, WAIT_S, "an event about the volume")
    assert running.pids("held") == []
    assert "deletionTimestamp" in running.pod("held")["metadata"]
    socket_path.with_name("away").rename(socket_path)
    running.await_gone("held")
    listener.server.close()
