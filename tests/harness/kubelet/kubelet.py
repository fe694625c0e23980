"""The stand-in kubelet of all nodes of a test cluster: runs what is bound to them as processes.

Used by the cluster fixture and the demo. Not here: images, cgroups, network namespaces.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.kubelet import status
from harness.kubelet.api import Api, ApiError, Json
from harness.kubelet.drivers import Drivers
from harness.kubelet.launch import mounts
from harness.kubelet.plan import Ground
from harness.kubelet.pod import Place, Pod, descendants
from harness.process import private_mounts

log = logging.getLogger("harness.kubelet")

PODS = "/api/v1/pods"
RETRY_S = 0.5
REGISTRY_S = 0.5
STOP_S = 30.0
PROJECT = Path(__file__).resolve().parents[3]


class Kubelet:
    """nodes: node name → address. root: an empty or new folder; `root/NODE/host` is NODE's `/`.

    images: image name without registry and tag → its entry point. Its mounts are made in a
    namespace of their own, the harness's (`harness.process.private_mounts`).
    """

    def __init__(
        self,
        kubeconfig: Path,
        root: Path,
        nodes: Mapping[str, str],
        images: Mapping[str, Sequence[str]] | None = None,
        project: Path = PROJECT,
    ) -> None:
        self.root = root
        self._api = Api(kubeconfig)
        self._nodes = dict(nodes)
        self._images = dict(images or {})
        self._project = project
        self._pods: dict[str, Pod] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._drivers = {node: Drivers(self._host(node)) for node in self._nodes}
        self._threads = [
            threading.Thread(target=self._follow, daemon=True, name="kubelet-pods"),
            threading.Thread(target=self._watch_drivers, daemon=True, name="kubelet-drivers"),
        ]

    def start(self) -> None:
        private_mounts()
        self.root.mkdir(parents=True, exist_ok=True)
        for node in self._nodes:
            host = self._host(node)
            host.mkdir(parents=True)
            mounts.share(str(host))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends all pods' processes (their objects stay) and unmounts everything; bounded."""
        self._stopping.set()
        self._api.close()
        with self._lock:
            pods = list(self._pods.values())
        end = time.monotonic() + STOP_S
        # Drivers last: they are asked to let go of the others' volumes.
        for wave in ([p for p in pods if p.uses_driver], [p for p in pods if not p.uses_driver]):
            for pod in wave:
                pod.stop()
            for pod in wave:
                if not pod.join(max(1.0, end - time.monotonic())):
                    log.error("pod %s/%s did not end", *pod.key)
        for thread in self._threads:
            thread.join(max(1.0, end - time.monotonic()))
        for node in self._nodes:
            mounts.unmount(str(self._host(node)))

    def host_path(self, node: str, path: str) -> Path:
        """Where the node's own `path` lies on this machine."""
        return Path(f"{self._host(node)}{path}")

    def log_path(self, namespace: str, pod: str, container: str) -> Path:
        """The log of the newest pod of that name; it may not be there yet."""
        found = sorted(
            self.root.glob(f"pods/{namespace}_{pod}_*/{container}.log"),
            key=lambda path: path.parent.stat().st_ctime_ns,
        )
        return found[-1] if found else self.root / f"pods/{namespace}_{pod}_none/{container}.log"

    def logs(self, namespace: str, pod: str, container: str) -> str:
        """All that the container wrote, over its restarts; empty when it never ran."""
        try:
            return self.log_path(namespace, pod, container).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def pids(self, namespace: str, pod: str) -> list[int]:
        """Every process of the pod; each container's first process before its descendants."""
        with self._lock:
            found = [p for p in self._pods.values() if p.key == (namespace, pod)]
        return descendants([pid for one in found for pid in one.pids()])

    def _host(self, node: str) -> Path:
        return self.root / node / "host"

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                for event in self._api.follow(PODS, self._listed):
                    if event["type"] == "DELETED":
                        self._deleted(event["object"])
                    elif event["type"] in ("ADDED", "MODIFIED"):
                        self._seen(event["object"])
            except ApiError as error:
                log.warning("%s", error)
                self._stopping.wait(RETRY_S)
            except Exception:
                log.exception("the watch of the pods failed")
                self._stopping.wait(RETRY_S)

    def _watch_drivers(self) -> None:
        while not self._stopping.wait(REGISTRY_S):
            for node, drivers in self._drivers.items():
                try:
                    drivers.look()
                except OSError as error:
                    log.warning("drivers of %s: %s", node, error)

    def _listed(self, pods: list[Json]) -> None:
        uids = {pod["metadata"]["uid"] for pod in pods}
        with self._lock:
            missing = [pod for uid, pod in self._pods.items() if uid not in uids]
        for pod in missing:
            self._deleted(pod.object)
        for found in pods:
            self._seen(found)

    def _seen(self, pod: Json) -> None:
        node = pod["spec"].get("nodeName")
        if node not in self._nodes or self._stopping.is_set():
            return
        uid = pod["metadata"]["uid"]
        with self._lock:
            known = self._pods.get(uid)
            if known is None:
                self._pods[uid] = Pod(self._api, pod, self._place(node, pod), self._report)
        if known is not None:
            known.update(pod)

    def _deleted(self, pod: Json) -> None:
        with self._lock:
            known = self._pods.get(pod["metadata"]["uid"])
            self._pods = {uid: one for uid, one in self._pods.items() if one.alive}
        if known is not None:
            known.gone()

    def _place(self, node: str, pod: Json) -> Place:
        metadata = pod["metadata"]
        name = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        visible = [self._project]
        base = Path(sys.base_prefix).resolve()
        if not base.is_relative_to("/usr"):
            visible.append(base)
        ground = Ground(
            node=node,
            address=self._nodes[node],
            images=self._images,
            programs=self._project / ".venv/bin",
            visible=tuple(visible),
            hidden=(self.root,),
            examples=self._project / "examples",
            service=self._api.host_and_port,
        )
        return Place(ground, self._host(node), self._drivers[node], self.root / "pods" / name)

    def _report(self, pod: Json, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        log.warning("pod %s/%s: %s: %s", metadata["namespace"], metadata["name"], reason, message)
        if self._stopping.is_set():
            return
        now = status.stamp()
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "generateName": f"{metadata['name']}.",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": "Warning",
            "reason": reason,
            "message": message[:1000],
            "source": {"component": "kubelet", "host": pod["spec"]["nodeName"]},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._api.post(f"/api/v1/namespaces/{metadata['namespace']}/events", event)
        except ApiError as error:
            log.warning("event of pod %s: %s", metadata["name"], error)
