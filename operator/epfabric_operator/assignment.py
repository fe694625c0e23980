"""Which node belongs to which fabric; pure, used by the planner.

A node belongs to the fabric that its label names, as long as that fabric lives and selects it;
where the label is gone or wrong, to the one that its EPFabricNode names, by the same rule. A free
node that several fabrics select goes to the oldest of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epfabric_crds import EPFabric
from epfabric_crds.names import FABRIC_LABEL

from epfabric_operator.world import NodeMeta, World

POOL_LABEL = "epfabric.io/pool"


@dataclass(frozen=True)
class Assignment:
    mine: tuple[NodeMeta, ...]  # nodes of this fabric, labelled yet or not, by name
    release: tuple[NodeMeta, ...]  # nodes that carry its label and belong to nobody
    contested: Mapping[str, str]  # selected node → the fabric that has it

    @property
    def selected(self) -> int:
        return len(self.mine) + len(self.contested)


def selects(fabric: EPFabric, node: NodeMeta) -> bool:
    return all(node.labels.get(k) == v for k, v in fabric.spec.node_selector.items())


def owner(node: NodeMeta, world: World) -> str | None:
    """The fabric that the node belongs to, or should."""
    epnode = world.epnodes.get(node.name)
    noted = epnode.spec.fabric if epnode and epnode.spec.node_uid == node.uid else ""
    for name in (node.labels.get(FABRIC_LABEL, ""), noted):
        has = world.live(name)
        if name in world.unreadable or (has and selects(has, node)):
            return name
    wanting = [name for name in world.fabrics if (f := world.live(name)) and selects(f, node)]
    return min(wanting, key=lambda n: (_created(world.fabrics[n]), n), default=None)


def _created(fabric: EPFabric) -> str:
    return fabric.metadata.creation_timestamp or ""


def assign(name: str, world: World) -> Assignment:
    fabric = world.live(name)
    mine, release, contested = [], [], {}
    for node in sorted(world.nodes.values(), key=lambda n: n.name):
        has = owner(node, world)
        if has == name:
            mine.append(node)
            continue
        if has is None and node.labels.get(FABRIC_LABEL) == name:
            release.append(node)
        if has and fabric and selects(fabric, node):
            contested[node.name] = has
    return Assignment(tuple(mine), tuple(release), contested)


def pool_of(fabric: EPFabric, node: NodeMeta) -> str | None:
    """The first pool whose nodeSelector matches; None without pools, or when none matches."""
    for pool in fabric.spec.agent.pools:
        if all(node.labels.get(k) == v for k, v in pool.node_selector.items()):
            return pool.name
    return None
