"""Small worlds for the operator's unit tests."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from epfabric_crds import EPFabric, EPFabricNode, names
from epfabric_operator import plan as planning
from epfabric_operator.plan import Plan, PlanConfig
from epfabric_operator.world import NodeMeta, World

CONFIG = PlanConfig(
    agent_image="agent:1", namespace="epfabric-system", agent_port=7470, policies="v1"
)


NOW = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)


def plan(name: str, seen: World, config: PlanConfig = CONFIG) -> Plan:
    return planning.plan(name, seen, config, NOW)


def fabric(name: str = "moe", created: str = "2026-01-01T00:00:00Z", **spec: Any) -> EPFabric:
    deleted = spec.pop("deleted", None)
    return EPFabric.from_dict(
        {
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "generation": 3,
                "creationTimestamp": created,
                **({"deletionTimestamp": deleted} if deleted else {}),
            },
            "spec": {"namespaceSelector": {}, "nodeSelector": {"pool": name}, **spec},
        }
    )


def node(name: str, **labels: str) -> NodeMeta:
    """`of` is short for the fabric's label."""
    found = {names.FABRIC_LABEL if k == "of" else k: v for k, v in labels.items()}
    return NodeMeta(name=name, uid=f"uid-{name}", labels=found)


def epnode(
    name: str, fabric_name: str = "moe", uid: str | None = None, **status: Any
) -> EPFabricNode:
    return EPFabricNode.from_dict(
        {
            "metadata": {"name": name, "uid": f"epn-{name}", "generation": 1},
            "spec": {"fabric": fabric_name, "nodeUid": uid or f"uid-{name}"},
            "status": status,
        }
    )


def condition(type_: str, status: str = "True", **rest: str) -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": rest.get("reason", "R"),
        "message": rest.get("message", "m"),
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def world(*things: EPFabric | NodeMeta | EPFabricNode, **rest: Any) -> World:
    fabrics: Mapping[str, EPFabric] = {
        t.metadata.name: t for t in things if isinstance(t, EPFabric)
    }
    return World(
        fabrics=fabrics,
        nodes={t.name: t for t in things if isinstance(t, NodeMeta)},
        epnodes={t.metadata.name: t for t in things if isinstance(t, EPFabricNode)},
        **rest,
    )
