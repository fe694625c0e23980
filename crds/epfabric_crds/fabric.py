"""EPFabric, typed: what an administrator wants; read by the operator and by manifest mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from epfabric_crds.convert import from_dict
from epfabric_crds.meta import Condition, ObjectMeta
from epfabric_crds.names import API_VERSION
from epfabric_crds.quantity import duration_ms
from epfabric_crds.selector import LabelSelector
from epfabric_crds.settings import Settings, TenantLimits


@dataclass(frozen=True, kw_only=True)
class Resources:
    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Hugepages:
    amount: str
    page_size: Literal["2Mi", "1Gi"] = "2Mi"


@dataclass(frozen=True, kw_only=True)
class AgentPool:
    name: str
    node_selector: Mapping[str, str] = field(default_factory=dict)
    resources: Resources | None = None
    hugepages: Hugepages | None = None


@dataclass(frozen=True, kw_only=True)
class Agent:
    pools: tuple[AgentPool, ...] = ()
    cdi_devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Tenant(TenantLimits):
    namespace_selector: LabelSelector

    @property
    def limits(self) -> TenantLimits:
        """What agents are told; which namespaces are meant, they need not know."""
        mine = {f.name: getattr(self, f.name) for f in dataclasses.fields(TenantLimits)}
        return TenantLimits(**mine)


@dataclass(frozen=True, kw_only=True)
class Update:
    max_unavailable: int = 1
    deadline: str | None = None
    paused: bool = False

    @property
    def deadline_ms(self) -> int | None:
        """None: never."""
        return duration_ms(self.deadline) if self.deadline else None


@dataclass(frozen=True, kw_only=True)
class EPFabricSpec(Settings):
    namespace_selector: LabelSelector
    node_selector: Mapping[str, str] = field(default_factory=dict)
    agent: Agent = Agent()
    tenants: tuple[Tenant, ...] = ()
    update: Update = Update()


@dataclass(frozen=True, kw_only=True)
class NodeCounts:
    selected: int = 0
    assigned: int = 0
    contested: int = 0
    not_ready: int = 0
    ready: int = 0
    failing: int = 0


@dataclass(frozen=True, kw_only=True)
class FailingNode:
    node: str
    reason: str
    message: str | None = None


@dataclass(frozen=True, kw_only=True)
class TransportCount:
    type: str
    nodes: int


@dataclass(frozen=True, kw_only=True)
class EPFabricStatus:
    observed_generation: int | None = None
    nodes: NodeCounts | None = None
    failing: tuple[FailingNode, ...] = ()
    transports: tuple[TransportCount, ...] = ()
    sessions: int | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, kw_only=True)
class EPFabric:
    metadata: ObjectMeta
    spec: EPFabricSpec
    status: EPFabricStatus = EPFabricStatus()
    api_version: Literal["epfabric.io/v1alpha1"] = API_VERSION  # type: ignore[assignment]
    kind: Literal["EPFabric"] = "EPFabric"

    @classmethod
    def from_dict(cls, data: Any, *, strict: bool = True) -> EPFabric:
        """Raises MirrorError. `strict=False` for objects that an API server has accepted."""
        return from_dict(cls, data, strict=strict)
