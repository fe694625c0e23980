"""What the operator sees at one moment, as the planner takes it; built by reconcile.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from epfabric_crds import EPFabric, EPFabricNode


@dataclass(frozen=True)
class NodeMeta:
    """A Node without anything but its metadata."""

    name: str
    uid: str
    labels: Mapping[str, str]
    cordon: str | None = None  # an administrator's, with the reason
    version: str = field(default="", compare=False)  # resourceVersion; also others' changes move it


@dataclass(frozen=True)
class Ref:
    """An object of ours: its URL path, and what it had when it was seen."""

    path: str
    uid: str | None
    version: str = field(default="", compare=False)  # resourceVersion


@dataclass(frozen=True)
class AgentPod:
    """The pod of a node's agent."""

    path: str
    name: str
    uid: str
    node: str
    outdated: bool  # made from another template than the one that is wanted now
    going: bool = False  # being deleted
    trouble: str = ""  # why it does not run now, where time alone will not help
    restless: bool = False  # it was started again and again; that alone says nothing of now
    created: str = ""  # RFC 3339


@dataclass(frozen=True)
class Agents:
    """A fabric's agents, while one of them is outdated; else nothing."""

    pods: tuple[AgentPod, ...] = ()
    settled: bool = False  # a pod that is deleted comes back as it is wanted


@dataclass(frozen=True, kw_only=True)
class World:
    fabrics: Mapping[str, EPFabric] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()  # fabrics that this version cannot read; left alone
    nodes: Mapping[str, NodeMeta] = field(default_factory=dict)
    epnodes: Mapping[str, EPFabricNode] = field(default_factory=dict)
    lease_ages_s: Mapping[str, float] = field(
        default_factory=dict
    )  # node → age of its agent's Lease
    down: frozenset[str] = frozenset()  # nodes that Kubernetes reports as not ready
    agents: Agents = Agents()  # of the fabric that is looked at
    owned: Mapping[str, tuple[Ref, ...]] = field(default_factory=dict)  # fabric → its other objects

    def live(self, name: str) -> EPFabric | None:
        """The fabric, unless it is gone or going."""
        fabric = self.fabrics.get(name)
        return fabric if fabric and not fabric.metadata.deletion_timestamp else None
