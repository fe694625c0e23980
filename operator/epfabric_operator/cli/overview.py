"""The commands status, nodes and groups: what is there, and how it is; used by main.py."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from epfabric_crds import EPFabric, EPFabricNode, EPGroup, to_dict
from epfabric_crds.meta import Condition, find
from epfabric_crds.node import NicRoom

from epfabric_operator.cli import output
from epfabric_operator.cli.cluster import Cluster
from epfabric_operator.cli.fault import FINE, FOUND, NOT_FOUND, Fault

FABRIC_COLUMNS = ("fabric", "ready", "nodes", "sessions", "transports", "age", "reason")
NODE_COLUMNS = (
    *("node", "fabric", "ready", "transport", "provider"),
    *("sessions", "nics", "room", "reason"),
)
GROUP_COLUMNS = (
    *("namespace", "group", "fabric", "phase", "ranks", "nodes", "masked"),
    *("barriers", "p50", "p99", "slowest", "reason"),
)
Row = dict[str, Any]


def status(cluster: Cluster, options: argparse.Namespace) -> int:
    fabrics = named(cluster.fabrics(), options.name, "EPFabric")
    now = output.now()
    rows = [fabric_row(fabric, now) for fabric in fabrics]
    output.show(rows, FABRIC_COLUMNS, options.output, "there is no EPFabric yet")
    return FINE if all(row["ready"] == "True" for row in rows) else FOUND


def nodes(cluster: Cluster, options: argparse.Namespace) -> int:
    found = [node for node in cluster.nodes() if options.fabric in (None, node.spec.fabric)]
    rows = [node_row(node) for node in named(found, options.name, "EPFabricNode")]
    output.show(rows, NODE_COLUMNS, options.output, "no fabric has a node")
    return FINE if all(row["ready"] == "True" for row in rows) else FOUND


def groups(cluster: Cluster, options: argparse.Namespace) -> int:
    namespace = None if options.all_namespaces else options.namespace
    found = [g for g in cluster.groups(namespace) if options.fabric in (None, g.spec.fabric)]
    rows = [group_row(group) for group in named(found, options.name, "EPGroup")]
    where = f"in namespace {namespace}; -A looks in all" if namespace else "in any namespace"
    output.show(rows, GROUP_COLUMNS, options.output, f"there is no group {where}")
    return FOUND if any(row["phase"] == "Failed" or row["masked"] for row in rows) else FINE


def named(found: list[Any], name: str | None, kind: str) -> list[Any]:
    """Those of that name; all without one. Raises Fault where a name finds none."""
    chosen = [one for one in found if name in (None, one.metadata.name)]
    if name is not None and not chosen:
        there = ", ".join(sorted(one.metadata.name for one in found)[:10]) or "none"
        raise Fault(NOT_FOUND, f"there is no {kind} {name}; there are: {there}")
    return sorted(chosen, key=lambda one: (one.metadata.namespace or "", one.metadata.name))


def fabric_row(fabric: EPFabric, now: datetime) -> Row:
    status, counts = fabric.status, fabric.status.nodes
    transports = [f"{one.type} {one.nodes}" for one in status.transports]
    return {
        "fabric": fabric.metadata.name,
        **_ready(status.conditions, "no operator has seen it"),
        "nodes": f"{counts.ready}/{counts.assigned}" if counts else "",
        "sessions": status.sessions,
        "transports": ", ".join(transports),
        "age": output.age(fabric.metadata.creation_timestamp, now),
        "failing": [dict(vars(one)) for one in status.failing],
        "conditions": _conditions(status.conditions),
    }


def node_row(node: EPFabricNode) -> Row:
    status = node.status
    chosen, topology = status.transport, status.topology
    return {
        "node": node.metadata.name,
        "fabric": node.spec.fabric,
        **_ready(status.conditions, "no operator has seen it"),
        "transport": chosen.type if chosen else None,
        "provider": chosen.provider if chosen else None,
        "sessions": status.sessions,
        "nics": len(topology.nics) if topology else None,
        "room": _fullest(status.nic_room),
        "nic_room": [to_dict(room) for room in status.nic_room],
        "endpoint": status.endpoint,
        "conditions": _conditions(status.conditions),
    }


def group_row(group: EPGroup) -> Row:
    status, barriers = group.status, group.status.barriers
    slowest = ""
    if barriers and barriers.slowest_rank is not None:
        slowest = f"rank {barriers.slowest_rank} ({(barriers.slowest_share or 0) * 100:.0f} %)"
    return {
        "namespace": group.metadata.namespace,
        "group": group.metadata.name,
        "fabric": group.spec.fabric,
        "phase": status.phase,
        "epoch": status.epoch,
        "ranks": group.spec.world_size,
        "nodes": len(status.nodes),
        "masked": status.masked or "",
        "barriers": barriers.count if barriers else None,
        "p50": output.seconds(barriers.p50_seconds) if barriers else "",
        "p99": output.seconds(barriers.p99_seconds) if barriers else "",
        "p50_seconds": barriers.p50_seconds if barriers else None,
        "p99_seconds": barriers.p99_seconds if barriers else None,
        "slowest": slowest,
        "reason": status.reason,
    }


def _fullest(rooms: Iterable[NicRoom]) -> str:
    """Of the NIC, and of what it says a limit of, of which the largest part is used."""
    found = [
        (count.used / count.limit, f"{room.device} {count.used}/{count.limit} {what}")
        for room in rooms
        for count, what in ((room.queue_pairs, "QPs"), (room.registrations, "MRs"))
        if count.limit
    ]
    return max(found)[1] if found else ""


def _ready(conditions: Iterable[Condition], unseen: str) -> Row:
    found = find(conditions, "Ready")
    if found is None:
        return {"ready": "Unknown", "reason": unseen}
    reason = "" if found.status == "True" else f"{found.reason}: {found.message}"
    return {"ready": found.status, "reason": reason}


def _conditions(conditions: Iterable[Condition]) -> Mapping[str, str]:
    return {one.type: f"{one.status}: {one.reason}: {one.message}" for one in conditions}
