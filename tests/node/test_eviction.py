"""Pods that are evicted, by their kubelet or by whoever drains a node: nothing of them stays."""

from __future__ import annotations

import pytest
from harness.kubelet.api import ApiError

from .fabric import PODS, SPACE, Fabric, Json, eventually

pytestmark = pytest.mark.timeout(300)

SCRATCH = "scratch"
LIMIT = 1 << 20
EVENTS = f"/api/v1/namespaces/{SPACE}/events"
BUDGETS = f"/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets"


def was_evicted(fabric: Fabric, one: Json) -> bool:
    """As its kubelet says; the pod's own status is that of its containers' exit."""
    uid = one["metadata"]["uid"]
    selector = f"involvedObject.uid={uid},reason=Evicted"
    return bool(fabric.api.get(EVENTS, fieldSelector=selector)["items"])


def test_a_pod_that_its_kubelet_evicts_leaves_nothing_and_makes_room(fabric: Fabric) -> None:
    """It writes more than a volume's limit. Its object stays; its session's place is free."""
    node = fabric.nodes[0]
    more: Json = {
        "volumes": [{"name": SCRATCH, "emptyDir": {"sizeLimit": str(LIMIT)}}],
        "container": {"volumeMounts": [{"name": SCRATCH, "mountPath": "/scratch"}]},
    }
    evicted = fabric.create("evicted", node, group="evicted", **more)
    beside = fabric.create("beside", node, group="beside")
    for one in (evicted, beside):
        fabric.await_rounds(one)
    third = fabric.create("third", node, group="third")
    eventually(
        lambda: any("maxSessions" in event.get("error", "") for event in fabric.events(third)),
        "there is no room for a third",
    )
    assert not fabric.joined(third)
    pids = node.pids(evicted["metadata"]["uid"])
    (fabric.volume_in(evicted).parents[1] / SCRATCH / "much").write_bytes(bytes(4 * LIMIT))
    eventually(lambda: was_evicted(fabric, evicted), "it is evicted")
    fabric.await_rounds(third)
    fabric.await_nothing_of(evicted, node, pids)
    fabric.await_rounds(beside)
    assert fabric.joined(beside) == 1


def test_a_pod_is_evicted_when_its_budget_allows_it_and_leaves_nothing(fabric: Fabric) -> None:
    """As `kubectl drain` asks for it."""
    pair = fabric.pair("drained")
    for one in pair:
        labels = {"metadata": {"labels": {"app": "drained"}}}
        fabric.api.patch(f"{PODS}/{one['metadata']['name']}", labels)
    budget: Json = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    budget["metadata"] = {"name": "drained"}
    budget["spec"] = {"minAvailable": 2, "selector": {"matchLabels": {"app": "drained"}}}
    fabric.api.post(BUDGETS, budget)
    eviction: Json = {"apiVersion": "policy/v1", "kind": "Eviction"}
    eviction["metadata"] = {"name": "drained-0", "namespace": SPACE}
    node = fabric.nodes[0]
    pids = node.pids(pair[0]["metadata"]["uid"])
    try:
        with pytest.raises(ApiError) as refused:
            fabric.api.post(f"{PODS}/drained-0/eviction", eviction)
        assert refused.value.code == 429
        fabric.await_rounds(pair[0])
    finally:
        fabric.api.delete(f"{BUDGETS}/drained", {})
    fabric.api.post(f"{PODS}/drained-0/eviction", eviction)
    eventually(lambda: not fabric.exists(f"{PODS}/drained-0"), "it is gone")
    fabric.await_nothing_of(pair[0], node, pids)
