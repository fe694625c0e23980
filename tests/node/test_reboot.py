"""A node loses its power and comes back: its pods start again, with volumes of the new boot."""

from __future__ import annotations

import pytest

from .fabric import Fabric, eventually

pytestmark = pytest.mark.timeout(300)


def test_pods_of_a_node_that_was_rebooted_exchange_again(fabric: Fabric) -> None:
    pair = fabric.pair("boot")
    node = fabric.nodes[1]
    path = f"/api/v1/nodes/{node.name}"
    boot_id = fabric.api.get(path)["status"]["nodeInfo"]["bootID"]
    before = fabric.status_of(pair[1])
    node.power_off()
    eventually(
        lambda: fabric.events(pair[0])[-1]["event"] == "lost", "the other rank sees the loss"
    )
    node.start()
    eventually(
        lambda: fabric.api.get(path)["status"]["nodeInfo"]["bootID"] != boot_id,
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
