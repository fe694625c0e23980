"""What the checks of doctor look at, read once; made by read(), used by every family."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeVar

from epfabric_crds import EPFabric, EPFabricNode, EPGroup, names

from epfabric_operator import paths
from epfabric_operator.cli import output
from epfabric_operator.cli.cluster import Cluster
from epfabric_operator.cli.fault import NO_CLUSTER, Fault

Object = Mapping[str, Any]
Severity = Literal["error", "warning", "info"]
MOST_KUBELETS = 32
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
T = TypeVar("T")


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be."""

    severity: Severity
    check: str
    subject: str
    seen: str
    """What is there."""
    why: str
    """What it leads to."""
    todo: str


@dataclass(frozen=True)
class Facts:
    """None where it could not be read; then `unseen` says why."""

    now: datetime
    fabrics: tuple[EPFabric, ...] = ()
    epnodes: tuple[EPFabricNode, ...] = ()
    groups: tuple[EPGroup, ...] = ()
    nodes: tuple[Object, ...] | None = None
    own_pods: tuple[Object, ...] | None = None
    """Of the operator, the agents and the CSI driver."""
    user_pods: tuple[Object, ...] | None = None
    """Annotated, or with our volume."""
    csi_nodes: tuple[Object, ...] | None = None
    definitions: tuple[Object, ...] | None = None
    requests: tuple[Object, ...] | None = None
    """Certificate requests of agents."""
    operator_lease: Object | None = None
    bindings: tuple[Object, ...] | None = None
    authority: str | None = None
    """PEM of the authorities that agents trust."""
    kubelets: Mapping[str, Object] = field(default_factory=dict)
    """Configuration by node, of at most MOST_KUBELETS."""
    unseen: tuple[str, ...] = ()


class _Reader:
    """Asks for one thing after the other; what is not allowed is noted and left out."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.unseen: list[str] = []

    def list(self, what: str, path: str, keep: Callable[[Object], bool] = bool) -> Any:
        return self.attempt(what, lambda: tuple(filter(keep, self.cluster.list(path))))

    def get(self, what: str, path: str) -> Object | None:
        return self.attempt(what, lambda: self.cluster.get(path))

    def attempt(self, what: str, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except Fault as fault:
            if fault.code == NO_CLUSTER:
                raise
            self.unseen.append(f"{what}: {fault}")
            return None


def read(cluster: Cluster) -> Facts:
    """Raises Fault where there is no cluster, or no right to see EPFabric's own objects."""
    fabrics, epnodes = tuple(cluster.fabrics()), tuple(cluster.nodes())
    groups = tuple(cluster.groups(None))
    reader = _Reader(cluster)
    pods = reader.list("pods", "/api/v1/pods", lambda pod: is_own(pod) or uses_fabric(pod))
    lease = f"{paths.leases(names.NAMESPACE)}/{names.OPERATOR_LEASE}"
    bundle = reader.get("authority", f"{paths.configmaps(names.NODES_NAMESPACE)}/{names.CA_BUNDLE}")
    return Facts(
        now=output.now(),
        fabrics=fabrics,
        epnodes=epnodes,
        groups=groups,
        nodes=reader.list("nodes", paths.NODES),
        own_pods=None if pods is None else tuple(filter(is_own, pods)),
        user_pods=None if pods is None else tuple(filter(uses_fabric, pods)),
        csi_nodes=reader.list("CSINodes", "/apis/storage.k8s.io/v1/csinodes"),
        definitions=reader.list(
            "CRDs", CRDS, lambda crd: bool(crd["spec"]["group"] == names.GROUP)
        ),
        requests=reader.list(
            "certificate requests",
            paths.CSRS,
            lambda csr: bool(csr["spec"]["signerName"] == names.SIGNER),
        ),
        operator_lease=reader.get("the operator's Lease", lease),
        bindings=reader.list("admission bindings", paths.bindings("v1")),
        authority=(bundle or {}).get("data", {}).get(names.CA_BUNDLE_KEY),
        kubelets=_kubelets(reader, epnodes),
        unseen=tuple(reader.unseen),
    )


def _kubelets(reader: _Reader, epnodes: tuple[EPFabricNode, ...]) -> dict[str, Object]:
    found: dict[str, Object] = {}
    for node in epnodes[:MOST_KUBELETS]:
        name = node.metadata.name
        config = reader.get(f"kubelet of {name}", f"{paths.node(name)}/proxy/configz")
        if config is None:  # of one that may not be asked, none may
            if not any(one.startswith(f"kubelet of {name}: ") for one in reader.unseen):
                reader.unseen.append(f"kubelet of {name}: there is no such node")
            return found
        found[name] = config.get("kubeletconfig", {})
    return found


def is_own(pod: Object) -> bool:
    metadata = pod["metadata"]
    name = metadata.get("labels", {}).get("app.kubernetes.io/name", "")
    ours = metadata.get("namespace") in (names.NAMESPACE, names.NODES_NAMESPACE)
    return ours and str(name).startswith("epfabric")


def uses_fabric(pod: Object) -> bool:
    return names.FABRIC_ANNOTATION in pod["metadata"].get("annotations", {}) or has_volume(pod)


def has_volume(pod: Object) -> bool:
    volumes = pod["spec"].get("volumes", ())
    return any(one.get("csi", {}).get("driver") == names.CSI_DRIVER for one in volumes)


def label(one: Object) -> str:
    """namespace/name, or the name of what has no namespace."""
    metadata = one["metadata"]
    return "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))


def some(found: list[str], most: int = 5) -> str:
    """For people: at most that many names."""
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def text_of(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
