"""Agents and nodes: crashes, memory, images, nodes of two fabrics, nodes that wait for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from epfabric_crds.meta import find

from epfabric_operator.cli.doctor.facts import Facts, Finding, Object, label

RESTARTS = 3
TEXTS = {
    "AgentSilent": "is the node up? Look at the agent's pod and log",
    "NoTransport": "the message names each transport and its reason; transport.allowTcp for trials",
    "NoCertificate": "kubectl get csr; a denied one carries the reason; is the operator running?",
}


def check(facts: Facts) -> Iterator[Finding]:
    for pod in facts.own_pods or ():
        for status in pod.get("status", {}).get("containerStatuses", ()):
            yield from _container(pod, status)
    down = {node["metadata"]["name"] for node in facts.nodes or () if not is_ready(node)}
    for epnode in facts.epnodes:
        name = epnode.metadata.name
        ready = find(epnode.status.conditions, "Ready")
        if name in down:
            yield Finding(
                "info",
                "node-not-ready",
                name,
                "Kubernetes finds the node NotReady",
                "it counts apart and degrades no fabric",
                "repair the node, or remove it",
            )
        elif ready is None or ready.status != "True":
            reason = ready.reason if ready else "no operator has seen it"
            yield Finding(
                "error",
                "agent-not-ready",
                name,
                f"{reason}: {ready.message}" if ready else reason,
                "pods that want the fabric wait on this node",
                TEXTS.get(reason, "docs/operations.md, A fabric does not become Ready"),
            )
        yield from _waiting(name, epnode.status.conditions)
    for fabric in facts.fabrics:
        overlap = find(fabric.status.conditions, "PolicyOverlap")
        if overlap is not None and overlap.status == "True":
            yield Finding(
                "warning",
                "contested-nodes",
                fabric.metadata.name,
                overlap.message,
                "a node serves one fabric; the other's pods never run there",
                "make the node selectors of the fabrics disjoint",
            )


def is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _container(pod: Object, status: Object) -> Iterator[Finding]:
    waiting = status.get("state", {}).get("waiting", {})
    last = status.get("lastState", {}).get("terminated", {})
    where = f"{label(pod)} on {pod['spec'].get('nodeName', 'no node')}"
    if last.get("reason") == "OOMKilled":
        yield Finding(
            "error",
            "out-of-memory",
            where,
            "the kernel killed it for its memory limit",
            "all sessions of that node ended with it",
            "raise the memory of the agents' pool, or lower spec.memory.perNode",
        )
    elif waiting.get("reason") in ("ImagePullBackOff", "ErrImagePull", "InvalidImageName"):
        yield Finding(
            "error",
            "image",
            where,
            str(waiting.get("message") or waiting["reason"]),
            "it cannot start",
            "is the image in the registry that images.*.repository names? imagePullSecrets?",
        )
    elif waiting.get("reason") == "CrashLoopBackOff" or status.get("restartCount", 0) >= RESTARTS:
        code = last.get("exitCode")
        yield Finding(
            "error",
            "crashes",
            where,
            f"restarted {status.get('restartCount', 0)} times, last exit code {code}",
            "sessions end with it each time",
            f"kubectl -n {pod['metadata']['namespace']} logs {pod['metadata']['name']} --previous",
        )


def _waiting(name: str, conditions: Any) -> Iterator[Finding]:
    degraded = find(conditions, "Degraded")
    pending = find(conditions, "UpdatePending")
    for found, check_name in ((degraded, "settings-wait"), (pending, "update-pending")):
        if found is not None and found.status == "True":
            yield Finding(
                "info",
                check_name,
                name,
                f"since {found.last_transition_time}: {found.message}",
                "the node serves on with what it had",
                "it goes on by itself when the node's sessions have ended",
            )
