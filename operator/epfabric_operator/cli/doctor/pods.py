"""Pods that use a fabric: stuck at their end, stuck at their start, without volume."""

from __future__ import annotations

from collections.abc import Iterator

from epfabric_crds import names

from epfabric_operator.cli import output
from epfabric_operator.cli.doctor.facts import Facts, Finding, Object, has_volume, label

TERMINATING_S = 300.0
STARTING_S = 180.0


def check(facts: Facts) -> Iterator[Finding]:
    fabrics = {fabric.metadata.name for fabric in facts.fabrics}
    for pod in facts.user_pods or ():
        metadata = pod["metadata"]
        ends_s = output.age_s(metadata.get("deletionTimestamp"), facts.now)
        if ends_s is not None:
            if ends_s > TERMINATING_S and has_volume(pod):
                yield _terminating(pod, ends_s)
            continue
        wanted = metadata.get("annotations", {}).get(names.FABRIC_ANNOTATION)
        if wanted is not None and wanted not in fabrics:
            yield Finding(
                "warning",
                "unknown-fabric",
                label(pod),
                f"its annotation names {wanted}, and no such EPFabric is there",
                "the pod has no agent: its library cannot connect",
                "correct the annotation, or apply the EPFabric",
            )
        yield from _starting(pod, facts)


def _terminating(pod: Object, ends_s: float) -> Finding:
    node = pod["spec"].get("nodeName", "no node")
    return Finding(
        "error",
        "terminating",
        label(pod),
        f"has been ending for {int(ends_s // 60)} minutes on {node}",
        "its volume is unmounted by epfabric-csi; without it the pod never ends",
        f"is a pod epfabric-csi running on {node}? It needs no fabric and no operator",
    )


def _starting(pod: Object, facts: Facts) -> Iterator[Finding]:
    status = pod.get("status", {})
    waits_s = output.age_s(pod["metadata"].get("creationTimestamp"), facts.now)
    if status.get("phase") != "Pending" or waits_s is None or waits_s < STARTING_S:
        return
    scheduled: Object = next(
        (c for c in status.get("conditions", ()) if c["type"] == "PodScheduled"), {}
    )
    if scheduled.get("status") == "False":
        yield Finding(
            "warning",
            "unschedulable",
            label(pod),
            str(scheduled.get("message") or scheduled.get("reason")),
            "the whole group waits for its ranks, until joinTimeout",
            "only nodes of the fabric can take it: are there enough, and free?",
        )
    elif has_volume(pod) and pod["spec"].get("nodeName"):
        yield Finding(
            "warning",
            "container-creating",
            label(pod),
            f"waits on {pod['spec']['nodeName']} for {int(waits_s // 60)} minutes",
            "most often for the agent of that node to bind the socket",
            "kubectl describe pod says what epfabric-csi answered; look at that node with"
            " kubectl epfabric nodes",
        )
