"""Real nodes with a control plane on their network; the fixture `site` and the demo start it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import build
from harness.cluster import Cluster
from harness.controlplane import Place
from harness.kubelet.api import Api, ApiError
from harness.node import disk, pause, settings
from harness.node.node import Node
from harness.node.wires import Wires
from harness.process import Processes, wait_until

READY_S = 90.0
PROGRAMS = ("controlplane", "kubelet", "containerd", "cni")
API_PORT = 443


class Site:
    """Nodes `node-0`…, each Ready when `start` returns. Ends with `processes`."""

    def __init__(
        self, processes: Processes, count: int = 2, labels: Mapping[str, str] | None = None
    ) -> None:
        self.processes = processes
        self.names = [f"node-{index}" for index in range(count)]
        self._labels = [f"{key}={value}" for key, value in (labels or {}).items()]
        self.wires = Wires(processes, count)
        plan = self.wires.plan
        processes.remove_cgroup_at_end(processes.folder.name)
        self.cluster = Cluster(
            processes, Place(plan.api, API_PORT, plan.services, tuple(self.names))
        )
        self.nodes: list[Node] = []

    def start(self, images: Sequence[Path] = ()) -> None:
        """Everything is up and all nodes have `images` when this returns."""
        for programs in PROGRAMS:
            build.programs(programs)
        with ThreadPoolExecutor(1 + len(self.names)) as pool:
            control = pool.submit(self.cluster.start)
            self.nodes = [self._node(index) for index in range(len(self.names))]
            self._fill_disks([pause.archive(), *images])
            control.result()
            list(pool.map(self._start, self.nodes))
        ready = lambda: all(map(self.is_ready, self.names))  # noqa: E731
        wait_until(ready, READY_S, f"{', '.join(self.names)} Ready")

    def node(self, name: str) -> Node:
        return self.nodes[self.names.index(name)]

    def is_ready(self, name: str) -> bool:
        try:
            found = Api(self.cluster.kubeconfig).get(f"/api/v1/nodes/{name}")
        except ApiError:
            return False
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in found["status"].get("conditions", [])
        )

    def _node(self, index: int) -> Node:
        authority = self.cluster.control_plane.certificate
        name = self.names[index]
        return Node(self.processes, self.wires, index, name, authority, self._labels)

    def _fill_disks(self, archives: Sequence[Path]) -> None:
        cached = disk.prepared(archives)
        first = self.nodes[0]
        if not disk.begin(first.disk, cached):
            build.say(f"importing {len(archives)} images, once for all later starts")
            first.import_images(archives)
            disk.keep(first.disk, cached)
        for node in self.nodes[1:]:  # not from the cache, which others prune
            disk.copy(first.disk / disk.IMAGES, node.disk / disk.IMAGES)

    def _start(self, node: Node) -> None:
        plane = self.cluster.control_plane
        certificate = plane.certificate.read_bytes()
        node.introduce(settings.kubeconfig(plane.url, certificate, plane.node_tokens[node.name]))
        node.start()
