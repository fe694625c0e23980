"""Reads the pods of a fabric's agents, as far as an update needs them; called by reconcile.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epfabric_crds import names

from epfabric_operator import paths
from epfabric_operator.kube import METADATA_LIST, Kube
from epfabric_operator.world import AgentPod, Agents

CONTAINER = "agent"
MOST_RESTARTS = 3
# Why a container waits, where waiting alone does not help.
STUCK = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)


def read_agents(kube: Kube, namespace: str, fabric: str, templates: Mapping[str, str]) -> Agents:
    """`templates`: the wanted template of each DaemonSet by its path. Raises ApiError.

    Where every pod is of a wanted template, nothing but that is read.
    """
    selector = f"app.kubernetes.io/name=epfabric-agent,{names.FABRIC_LABEL}={fabric}"
    wanted = set(templates.values())
    query = {
        "labelSelector": f"{selector},{names.TEMPLATE_LABEL} notin ({','.join(sorted(wanted))})"
    }
    if not any(True for _ in kube.each(paths.pods(namespace), query, accept=METADATA_LIST)):
        return Agents()
    pods = tuple(
        agent_pod(item, f"{paths.pods(namespace)}/{item['metadata']['name']}", wanted)
        for item in kube.each(paths.pods(namespace), {"labelSelector": selector})
    )
    settled = all(_settled(kube.get(path), template) for path, template in templates.items())
    return Agents(pods=pods, settled=settled)


def agent_pod(item: Mapping[str, Any], path: str, wanted: set[str]) -> AgentPod:
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    template = (meta.get("labels") or {}).get(names.TEMPLATE_LABEL)
    return AgentPod(
        path=path,
        name=meta["name"],
        uid=meta["uid"],
        node=spec.get("nodeName") or _meant_for(spec),
        outdated=template not in wanted,
        going=bool(meta.get("deletionTimestamp")),
        trouble=_trouble(status),
        restless=_restarts(status) >= MOST_RESTARTS,
        created=meta.get("creationTimestamp") or "",
    )


def _meant_for(spec: Mapping[str, Any]) -> str:
    """Where the DaemonSet's controller wants a pod that is not placed yet."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _trouble(status: Mapping[str, Any]) -> str:
    """Why the agent does not run now; empty while it runs, however often it was started."""
    containers = [*(status.get("containerStatuses") or ())]
    for container in containers:
        if container.get("name") == CONTAINER and "running" in (container.get("state") or {}):
            return ""
    for container in [*(status.get("initContainerStatuses") or ()), *containers]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in STUCK:
            text = f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
            return text[:200]
    if _restarts(status) >= MOST_RESTARTS:
        return f"its container has ended {_restarts(status)} times"
    return ""


def _restarts(status: Mapping[str, Any]) -> int:
    found = status.get("containerStatuses") or ()
    return sum(c.get("restartCount", 0) for c in found if c.get("name") == CONTAINER)


def _settled(daemonset: Mapping[str, Any] | None, template: str) -> bool:
    """Whether a pod that is deleted now comes back from the wanted template."""
    if daemonset is None:
        return False
    labels = daemonset["spec"]["template"]["metadata"].get("labels") or {}
    seen = (daemonset.get("status") or {}).get("observedGeneration")
    return labels.get(names.TEMPLATE_LABEL) == template and (
        seen == daemonset["metadata"]["generation"]
    )
