"""A node loses its power and comes back: its pods start again, with volumes of the new boot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.node.node import Node
from harness.node.settings import BOOT_ID

from .fabric import PODS, Fabric, eventually

pytestmark = pytest.mark.timeout(300)

RECORDS = "var-lib/epfabric/records"


def boots_seen(fabric: Fabric, node: Node) -> set[str]:
    """The boot ids that our programs on the node read."""
    uids = [pod["metadata"]["uid"] for pod in fabric.ours("", node.name)]
    pids = [pid for uid in uids for pid in node.pids(uid)]
    return {Path(f"/proc/{pid}/root", BOOT_ID).read_text().strip() for pid in pids}


def boots_recorded(node: Node) -> dict[str, str]:
    """The boot in which each pod's volume was published, by the pod's name."""
    found = [json.loads(path.read_text()) for path in (node.disk / RECORDS).glob("*.json")]
    return {record["pod"]: record["bootId"] for record in found}


def test_pods_of_a_node_that_was_rebooted_exchange_again(fabric: Fabric) -> None:
    """What was recorded at the boot before is of no use then; a pod was removed in between."""
    pair = fabric.pair("boot")
    node = fabric.nodes[1]
    removed = fabric.create("removed", node)
    fabric.await_rounds(removed)
    path = f"/api/v1/nodes/{node.name}"
    boot = fabric.api.get(path)["status"]["nodeInfo"]["bootID"]
    eventually(lambda: boots_seen(fabric, node) == {boot}, "all see its boot")
    wanted = {"boot-1": boot, "removed": boot}
    eventually(lambda: boots_recorded(node) == wanted, "both volumes are recorded")
    before = fabric.status_of(pair[1])
    node.power_off()
    fabric.remove(removed, grace_s=0)
    eventually(
        lambda: fabric.events(pair[0])[-1]["event"] == "lost", "the other rank sees the loss"
    )
    node.start()
    eventually(
        lambda: fabric.api.get(path)["status"]["nodeInfo"]["bootID"] != boot,
        "the node says that it was rebooted",
    )
    eventually(
        lambda: fabric.status_of(pair[1]).get("containerID") != before["containerID"],
        "the pod's container is started again",
    )
    for one in pair:
        fabric.await_rounds(one)
        assert fabric.joined(one) > 1
    assert fabric.read(pair[1])["metadata"]["uid"] == pair[1]["metadata"]["uid"]
    assert fabric.status_of(pair[0])["restartCount"] == 0
    boot = fabric.api.get(path)["status"]["nodeInfo"]["bootID"]
    eventually(lambda: boots_seen(fabric, node) == {boot}, "all see its new boot")
    eventually(lambda: boots_recorded(node) == {"boot-1": boot}, "old records are dropped")
    assert not fabric.exists(f"{PODS}/removed")
    fabric.await_nothing_of(removed, node, [])
