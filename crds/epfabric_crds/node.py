"""EPFabricNode, typed: one node of a fabric; the operator writes spec, the agent writes status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from epfabric_crds.convert import from_dict
from epfabric_crds.meta import Condition, ObjectMeta
from epfabric_crds.names import API_VERSION
from epfabric_crds.settings import Settings


@dataclass(frozen=True, kw_only=True)
class EPFabricNodeSpec(Settings):
    fabric: str
    node_uid: str
    cordon: str | None = None


@dataclass(frozen=True, kw_only=True)
class ChosenTransport:
    type: str | None = None
    provider: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Gpu:
    uuid: str
    pci_address: str | None = None
    vendor: str | None = None
    numa_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Nic:
    name: str
    rdma_device: str | None = None
    driver: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
    rail: int | None = None
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    speed_mbps: int | None = None
    state: str | None = None


@dataclass(frozen=True, kw_only=True)
class Topology:
    numa_nodes: int | None = None
    cpus: str | None = None
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProxyPlace:
    session: str
    index: int | None = None
    cpu: int | None = None
    numa_node: int | None = None


NicState = Literal["AsWanted", "Differs", "Unsupported", "Waiting", "Refused", "Failed"]


@dataclass(frozen=True, kw_only=True)
class NicSetting:
    name: str
    state: NicState
    wanted: str
    actual: str | None = None
    message: str | None = None


@dataclass(frozen=True, kw_only=True)
class NicStatus:
    name: str
    state: NicState
    settings: tuple[NicSetting, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NicCount:
    used: int
    limit: int | None = None


@dataclass(frozen=True, kw_only=True)
class NicRoom:
    device: str
    queue_pairs: NicCount
    registrations: NicCount


@dataclass(frozen=True, kw_only=True)
class PeerMemory:
    group: str
    nvlink: Literal["posix_fd", "none"]
    reason: str


@dataclass(frozen=True, kw_only=True)
class AgentFacts:
    """Ranges of versions are texts such as 1 or 1-2."""

    pod_uid: str | None = None
    version: str | None = None
    abi: str | None = None
    peers: str | None = None


@dataclass(frozen=True, kw_only=True)
class EPFabricNodeStatus:
    observed_generation: int | None = None
    endpoint: str | None = None
    transport: ChosenTransport | None = None
    topology: Topology | None = None
    capabilities: tuple[str, ...] = ()
    nics: tuple[NicStatus, ...] = ()
    nic_room: tuple[NicRoom, ...] = ()
    proxies: tuple[ProxyPlace, ...] = ()
    sessions: int | None = None
    groups: tuple[str, ...] = ()
    peer_memory: tuple[PeerMemory, ...] = ()
    agent: AgentFacts | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EPFabricNode:
    metadata: ObjectMeta
    spec: EPFabricNodeSpec
    status: EPFabricNodeStatus = EPFabricNodeStatus()
    api_version: Literal["epfabric.io/v1alpha1"] = API_VERSION  # type: ignore[assignment]
    kind: Literal["EPFabricNode"] = "EPFabricNode"

    @classmethod
    def from_dict(cls, data: Any, *, strict: bool = True) -> EPFabricNode:
        """Raises MirrorError. `strict=False` for objects that an API server has accepted."""
        return from_dict(cls, data, strict=strict)
