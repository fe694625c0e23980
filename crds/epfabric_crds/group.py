"""EPGroup, typed: one communicating set of ranks; written by its coordinator's agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from epfabric_crds.convert import from_dict
from epfabric_crds.meta import ObjectMeta
from epfabric_crds.names import API_VERSION


@dataclass(frozen=True, kw_only=True)
class EPGroupSpec:
    fabric: str
    world_size: int


@dataclass(frozen=True, kw_only=True)
class Coordinator:
    node: str
    endpoint: str


@dataclass(frozen=True, kw_only=True)
class GroupNode:
    node: str
    endpoint: str | None = None
    ranks: str | None = None


@dataclass(frozen=True, kw_only=True)
class BarrierStatistics:
    count: int | None = None
    p50_seconds: float | None = None
    p99_seconds: float | None = None
    slowest_rank: int | None = None
    slowest_share: float | None = None


@dataclass(frozen=True, kw_only=True)
class EPGroupStatus:
    phase: Literal["Forming", "Ready", "Completed", "Failed"] | None = None
    reason: str | None = None
    epoch: int | None = None
    masked: str | None = None
    coordinator: Coordinator | None = None
    nodes: tuple[GroupNode, ...] = ()
    barriers: BarrierStatistics | None = None


@dataclass(frozen=True, kw_only=True)
class EPGroup:
    metadata: ObjectMeta
    spec: EPGroupSpec
    status: EPGroupStatus = EPGroupStatus()
    api_version: Literal["epfabric.io/v1alpha1"] = API_VERSION  # type: ignore[assignment]
    kind: Literal["EPGroup"] = "EPGroup"

    @classmethod
    def from_dict(cls, data: Any, *, strict: bool = True) -> EPGroup:
        """Raises MirrorError. `strict=False` for objects that an API server has accepted."""
        return from_dict(cls, data, strict=strict)
