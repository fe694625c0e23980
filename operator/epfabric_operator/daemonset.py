"""The DaemonSets of a fabric's agents; pure, used by the planner."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from typing import Any

from epfabric_crds import EPFabric, names
from epfabric_crds.fabric import AgentPool

from epfabric_operator.assignment import POOL_LABEL
from epfabric_operator.privileges import pod_annotations, security_context

# Of an agent whose pool says nothing: without a request the kernel lets every other pod go first,
# and ranks take an agent that gets no CPU for a second for dead.
REQUESTS = {"cpu": "500m", "memory": "256Mi"}


STOP_S = 20
# With the agents' settings of many NICs to be restored, each of which may start its link anew.
STOP_WITH_NICS_S = 103
GRACE_S = 10  # from the process's own end to the kubelet's

PRIORITY_CLASS = "system-node-critical"
PULL_POLICY = "IfNotPresent"


def daemonsets(
    fabric: EPFabric,
    image: str,
    port: int,
    namespace: str,
    priority_class: str = PRIORITY_CLASS,
    pull_policy: str = PULL_POLICY,
    kubelet_root: str = names.KUBELET_ROOT,
) -> list[dict[str, Any]]:
    """One DaemonSet a pool, or one for all nodes; without metadata that all objects share."""
    pools: list[AgentPool | None] = [*fabric.spec.agent.pools] or [None]
    made = []
    for pool in pools:
        pod = {**_pod(fabric, pool, image, port), "priorityClassName": priority_class}
        pod["containers"][0]["imagePullPolicy"] = pull_policy
        _show_pod_resources(pod, kubelet_root)
        made.append(_daemonset(fabric, pool, pod, namespace))
    return made


def _daemonset(
    fabric: EPFabric, pool: AgentPool | None, pod: dict[str, Any], namespace: str
) -> dict[str, Any]:
    name = names.agent_daemonset(fabric.metadata.name, pool.name if pool else None)
    labels = {
        "app.kubernetes.io/name": "epfabric-agent",
        names.FABRIC_LABEL: fabric.metadata.name,
        **({POOL_LABEL: pool.name} if pool else {}),
    }
    told = pod_annotations(fabric.spec)
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            # The operator itself replaces pods (update.py): it knows of groups.
            "updateStrategy": {"type": "OnDelete"},
            "template": {
                "metadata": {
                    "labels": {**labels, names.TEMPLATE_LABEL: _digest(labels, pod, told)},
                    **({"annotations": told} if told else {}),
                },
                "spec": pod,
            },
        },
    }


def template_of(daemonset: dict[str, Any]) -> str:
    """What its pods carry as TEMPLATE_LABEL."""
    label: str = daemonset["spec"]["template"]["metadata"]["labels"][names.TEMPLATE_LABEL]
    return label


def _digest(*parts: dict[str, Any]) -> str:
    """Equal for equal templates, so that one that is set back is the earlier one again."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _pod(fabric: EPFabric, pool: AgentPool | None, image: str, port: int) -> dict[str, Any]:
    selector = {names.FABRIC_LABEL: fabric.metadata.name}
    if pool:
        # The operator labels each node with its one pool, so that pools never overlap.
        selector[POOL_LABEL] = pool.name
    volumes: list[dict[str, Any]] = [
        {"name": "state", "hostPath": {"path": names.STATE_DIR, "type": "DirectoryOrCreate"}}
    ]
    if fabric.spec.nics.mode == "Configure":
        volumes.append({"name": "sys", "hostPath": {"path": "/sys", "type": "Directory"}})
    if pool and pool.hugepages:
        medium = f"HugePages-{pool.hugepages.page_size}"
        volumes.append({"name": "hugepages", "emptyDir": {"medium": medium}})
    return {
        "serviceAccountName": names.AGENT_ACCOUNT,
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": _stop_s(fabric) + GRACE_S,
        "nodeSelector": selector,
        "tolerations": [{"operator": "Exists"}],
        "containers": [_container(fabric, pool, image, port)],
        "volumes": volumes,
    }


def _show_pod_resources(pod: dict[str, Any], kubelet_root: str) -> None:
    """The kubelet's socket, by its folder, since a kubelet that starts again makes it anew."""
    seen = {"name": "pod-resources", "mountPath": str(PurePath(names.POD_RESOURCES).parent)}
    host = {"path": f"{kubelet_root.rstrip('/')}/pod-resources", "type": "DirectoryOrCreate"}
    pod["containers"][0]["volumeMounts"].append({**seen, "readOnly": True})
    pod["volumes"].append({"name": "pod-resources", "hostPath": host})


def _container(fabric: EPFabric, pool: AgentPool | None, image: str, port: int) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": "agent",
        "image": image,
        "command": ["epfabric-agent"],
        "args": [
            "--node=$(NODE_NAME)",
            "--address=$(HOST_IP)",
            f"--port={port}",
            f"--fabric={fabric.metadata.name}",
            f"--state-dir={names.STATE_DIR}",
        ],
        "env": [
            _field("NODE_NAME", "spec.nodeName"),
            _field("HOST_IP", "status.hostIP"),
            _field("POD_NAME", "metadata.name"),
            _field("POD_UID", "metadata.uid"),
        ],
        "securityContext": security_context(fabric.spec),
        "volumeMounts": [{"name": "state", "mountPath": names.STATE_DIR}],
    }
    if fabric.spec.nics.mode == "Configure":
        container["args"].append(f"--stop-s={STOP_WITH_NICS_S}")
        # RoCE mode, ToS and ECN are set by files, which a container sees read-only.
        container["volumeMounts"].append({"name": "sys", "mountPath": "/sys"})
    if fabric.spec.telemetry.endpoint:
        container["env"].append(
            {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": fabric.spec.telemetry.endpoint}
        )
    if port:
        container["ports"] = [{"name": "grpc", "containerPort": port, "protocol": "TCP"}]
    container["resources"] = _resources(pool)
    if pool and pool.hugepages:
        container["volumeMounts"].append({"name": "hugepages", "mountPath": "/dev/hugepages"})
    return container


def _stop_s(fabric: EPFabric) -> int:
    return STOP_WITH_NICS_S if fabric.spec.nics.mode == "Configure" else STOP_S


def _resources(pool: AgentPool | None) -> dict[str, Any]:
    given = pool.resources if pool and pool.resources else None
    limits = dict(given.limits) if given else {}
    requests = {k: v for k, v in REQUESTS.items() if k not in limits}
    requests |= dict(given.requests) if given else {}
    if pool and pool.hugepages:
        limits[f"hugepages-{pool.hugepages.page_size}"] = pool.hugepages.amount
    return {k: v for k, v in (("requests", requests), ("limits", limits)) if v}


def _field(name: str, path: str) -> dict[str, Any]:
    # apiVersion is filled in by the server; left out, every apply would look like a change.
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
