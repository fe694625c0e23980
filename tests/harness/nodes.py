"""Node objects that are kept ready, as kubelets would; for the cluster fixture and the demo."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from harness.kubelet.api import MERGE, Api, ApiError, Json

log = logging.getLogger("harness.nodes")

NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_S = 5.0
REPORT_S = 20.0
LEASE_S = 40
ALLOCATABLE = {"cpu": "16", "memory": "64Gi", "ephemeral-storage": "64Gi", "pods": "110"}
START_S = 30.0
NOT_READY = "node.kubernetes.io/not-ready"


class Nodes:
    """`count` nodes `PREFIX-0`…; node i has the address 127.0.1.(i+1)."""

    def __init__(
        self,
        kubeconfig: Path,
        count: int,
        labels: Mapping[str, str] | None = None,
        prefix: str = "node",
        allocatable: Mapping[str, str] | None = None,
    ) -> None:
        if not 1 <= count <= 250:
            raise ValueError(f"count must be 1 to 250, not {count}")
        self.addresses = {f"{prefix}-{i}": f"127.0.1.{i + 1}" for i in range(count)}
        self._labels = dict(labels or {})
        self._resources = {**ALLOCATABLE, **(allocatable or {})}
        self._api = Api(kubeconfig)
        self._since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._silent: set[str] = set()
        self._reported: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew_all, daemon=True, name="nodes")

    @property
    def names(self) -> list[str]:
        return list(self.addresses)

    def start(self) -> None:
        """Returns when all nodes are ready and without the taint of new nodes."""
        for name in self.names:
            self._create(name)
        self._thread.start()
        end = time.monotonic() + START_S
        while not all(self._settled(name) for name in self.names):
            if time.monotonic() > end:
                raise RuntimeError(f"the nodes are not schedulable after {START_S:.0f} s")
            time.sleep(0.1)

    def stop(self) -> None:
        """Renews no more: the nodes become NotReady. The objects stay."""
        self._stop.set()
        self._thread.join(10.0)

    def delete(self) -> None:
        """Removes the objects, after `stop`."""
        for name in self.names:
            self._api.delete(f"{NODES}/{name}", {})

    def silence(self, name: str) -> None:
        """The node stops to report, as when its machine is lost."""
        self._silent.add(name)

    def restore(self, name: str) -> None:
        self._reported.pop(name, None)
        self._silent.discard(name)

    def _create(self, name: str) -> None:
        body: Json = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    **self._labels,
                },
            },
        }
        try:
            self._api.post(NODES, body)
        except ApiError as error:
            if error.code != 409:
                raise
        self._lease(name)
        self._report(name)

    def _settled(self, name: str) -> bool:
        taints = self._api.get(f"{NODES}/{name}")["spec"].get("taints", [])
        return all(taint["key"] != NOT_READY for taint in taints)

    def _renew_all(self) -> None:
        while not self._stop.is_set():
            for name in self.names:
                if name in self._silent:
                    continue
                try:
                    self._lease(name)
                    if time.monotonic() - self._reported.get(name, -REPORT_S) >= REPORT_S:
                        self._report(name)
                except ApiError as error:
                    log.warning("node %s was not renewed: %s", name, error)
            self._stop.wait(RENEW_S)

    def _report(self, name: str) -> None:
        """Status, and removal of the taint that new nodes get."""
        node = self._api.patch(f"{NODES}/{name}/status", self._status(name), MERGE)
        taints = node["spec"].get("taints", [])
        left = [taint for taint in taints if taint["key"] != NOT_READY]
        if left == taints:
            self._reported[name] = time.monotonic()
            return
        version = node["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "spec": {"taints": left or None}}
        try:
            self._api.patch(f"{NODES}/{name}", body, MERGE)
        except ApiError as error:
            if error.code != 409:  # the next turn looks again
                raise

    def _lease(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": now}
        try:
            self._api.patch(f"{LEASES}/{name}", {"spec": spec}, MERGE)
        except ApiError as error:
            if error.code != 404:
                raise
            body: Json = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": name},
                "spec": spec,
            }
            self._api.post(LEASES, body)

    def _status(self, name: str) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

        def condition(kind: str, value: str, reason: str) -> dict[str, str]:
            return {
                "type": kind,
                "status": value,
                "reason": reason,
                "message": "reported by the test cluster",
                "lastHeartbeatTime": now,
                "lastTransitionTime": self._since,
            }

        return {
            "status": {
                "capacity": self._resources,
                "allocatable": self._resources,
                "addresses": [
                    {"type": "InternalIP", "address": self.addresses[name]},
                    {"type": "Hostname", "address": name},
                ],
                "conditions": [
                    condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                    condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                    condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                    condition("Ready", "True", "KubeletReady"),
                ],
                "nodeInfo": {
                    "kubeletVersion": "v1.36.3",
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                    "osImage": "",
                    "kernelVersion": "",
                    "containerRuntimeVersion": "process://1",
                    "kubeProxyVersion": "",
                    "machineID": name,
                    "systemUUID": name,
                    "bootID": name,
                },
            }
        }
