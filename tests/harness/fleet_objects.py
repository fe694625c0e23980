"""What kubelets, agents and users write of simulated nodes, as plain objects; for harness.fleet."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from epfabric_crds import names

Json = dict[str, Any]
NODE_BYTES = 40_000  # what a Node here has at least, as JSON
IMAGES = 50  # as many as a kubelet tells of
NOTE = "x" * 4000
GPUS = 8


@dataclass(frozen=True)
class Shape:
    """How many nodes there are, whose they are and how often they are heard of."""

    nodes: int
    fabric: str
    labels: Mapping[str, str]  # of each node, for the fabric's nodeSelector
    jobs: str  # namespace of the pods
    leases: str = names.NODES_NAMESPACE
    prefix: str = "fleet"
    renew_s: float = names.LEASE_RENEW_SECONDS
    beat_s: float = 300.0  # a kubelet's status, where nothing changes
    image: str = field(default="registry.example.com/a/path/of/a/team/and/its/image", repr=False)

    def name(self, index: int) -> str:
        return f"{self.prefix}-{index:05}"

    @property
    def names(self) -> list[str]:
        return [self.name(index) for index in range(self.nodes)]


def stamp() -> str:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    return now.replace("+00:00", "Z")


def node(shape: Shape, index: int) -> Json:
    """A Node; as it is stored it has NODE_BYTES."""
    name = shape.name(index)
    features = {f"node.example.com/feature-{i:02}": f"value-{i}" for i in range(30)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {**features, **shape.labels, "kubernetes.io/hostname": name},
            "annotations": {f"example.com/notes-{i}": NOTE for i in range(2)},
        },
        "spec": {"taints": [{"key": "example.com/simulated", "effect": "NoSchedule"}]},
        "status": node_status(shape, index),
    }


def node_status(shape: Shape, index: int) -> Json:
    amounts = {"pods": "110", "cpu": "128", "memory": "2Ti", "nvidia.com/gpu": str(GPUS)}
    return {
        "addresses": [{"type": "InternalIP", "address": address(index)}],
        "allocatable": amounts,
        "capacity": amounts,
        "conditions": [ready()],
        "images": [
            {
                "names": [
                    f"{shape.image}-{i:03}@sha256:{digest:064x}"
                    for digest in range(i, i + 5)
                ]
                + [f"{shape.image}-{i:03}:v1.{i}"],
                "sizeBytes": 1 << 30,
            }
            for i in range(IMAGES)
        ],
    }  # fmt: skip


def ready() -> Json:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "it is simulated",
        "lastHeartbeatTime": stamp(),
    }


def address(index: int) -> str:
    return f"10.{index >> 8 & 255}.{index & 255}.1"


def pod(shape: Shape, index: int) -> Json:
    """One that opted in, bound to the nodes in turn."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"rank-{index:05}",
            "annotations": {names.FABRIC_ANNOTATION: shape.fabric},
        },
        "spec": {
            "nodeName": shape.name(index % shape.nodes),
            "containers": [{"name": "rank", "image": "none"}],
            "automountServiceAccountToken": False,
        },
    }


def lease(shape: Shape, name: str, uid: str) -> Json:
    """As an agent renews it, of an EPFabricNode with this uid."""
    owner = {"apiVersion": names.API_VERSION, "kind": "EPFabricNode", "name": name, "uid": uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": names.agent_lease(name),
            "namespace": shape.leases,
            "ownerReferences": [owner],
        },
        "spec": {
            "holderIdentity": f"{name}/1",
            "leaseDurationSeconds": names.LEASE_SECONDS,
            "renewTime": stamp(),
        },
    }


def agent_status(name: str, generation: int) -> Json:
    """What an agent tells of a node with eight GPUs, eight NICs and no session."""
    gpus = [{"uuid": f"GPU-{i}-{name}", "numaNode": i // 4} for i in range(GPUS)]
    nics = [{"name": f"eth{i}", "driver": "mlx5_core", "rail": i, "mtu": 9000} for i in range(GPUS)]
    return {
        "apiVersion": names.API_VERSION,
        "kind": "EPFabricNode",
        "metadata": {"name": name},
        "status": {
            "observedGeneration": generation,
            "endpoint": "10.0.0.1:7470",
            "transport": {
                "type": "libfabric",
                "provider": "tcp;ofi_rxm",
                "reason": "tcp is allowed",
            },
            "topology": {"numaNodes": 2, "cpus": "0-127", "gpus": gpus, "nics": nics},
            "capabilities": ["host-memory", "signals", "barrier-leader"],
            "sessions": 0,
            "conditions": [
                {
                    "type": type_,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastTransitionTime": stamp(),
                    "observedGeneration": generation,
                }
                for type_, status, reason, message in (
                    ("TransportReady", "True", "Chosen", "libfabric: tcp is allowed"),
                    ("CPUConstrained", "False", "EnoughCPUs", "each proxy has its own CPU"),
                    (
                        "ProxiesLocal",
                        "True",
                        "Local",
                        "proxies are near their memory",
                    ),
                    ("Degraded", "False", "AsWanted", "the node serves as its spec says"),
                )
            ],
        },
    }
