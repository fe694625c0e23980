"""Slots on real kubelets: claims by DRA with a GPU of the same PCIe root, and the device plugin."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from harness.node.node import Node

from . import offers
from .fabric import Fabric, Json, eventually

pytestmark = pytest.mark.timeout(300)

NODES = "/api/v1/nodes"


def environment_of(node: Node, one: Json) -> dict[str, str]:
    """Of the rank's process."""
    (pid,) = node.pids(one["metadata"]["uid"])
    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_a_claim_of_one_pcie_root_is_prepared_at_each_start_and_given_back(fabric: Fabric) -> None:
    """Through a restart of the kubelet, in which the pod lives on, and a reboot of the node."""
    node = fabric.nodes[1]
    with offers.gpus_and_slots(fabric, node) as gpus:
        fabric.api.post(offers.TEMPLATES, offers.template("both"))
        claims: Json = {
            "resourceClaims": [{"name": "both", "resourceClaimTemplateName": "both"}],
            "container": {"resources": {"claims": [{"name": "both"}]}},
        }
        pair = (
            fabric.create("claimed-0", fabric.nodes[0], group="claimed", rank=0, world=2),
            fabric.create("claimed-1", node, group="claimed", rank=1, world=2, **claims),
        )
        for one in pair:
            fabric.await_rounds(one)
        (claim,) = fabric.api.get(offers.CLAIMS)["items"]
        uid = claim["metadata"]["uid"]
        seen = environment_of(node, pair[1])
        given = {name: seen[name] for name in ("GPU", "EPFABRIC_RAILS")}
        assert given["GPU"] == "gpu-1"
        assert given["EPFABRIC_RAILS"] in offers.RAILS
        assert gpus.calls(uid) == ["prepare"]
        first = offers.prepared(node, uid)

        node.stop_kubelet()
        node.start_kubelet()
        eventually(lambda: offers.roots_of(fabric, node), "our slots, which a kubelet removes")
        fabric.await_rounds(pair[1])
        assert fabric.joined(pair[1]) == 1
        for path in offers.cdi_files(node, uid):
            path.unlink()
        node.kill_shim(pair[1]["metadata"]["uid"])
        eventually(lambda: gpus.calls(uid) == ["prepare"] * 2, "the kubelet asks again")
        fabric.await_rounds(pair[1])
        assert environment_of(node, pair[1]).items() >= given.items()
        assert offers.prepared(node, uid) == first

        before = fabric.status_of(pair[1])["containerID"]
        node.power_off()
        node.start()
        gpus.start()
        eventually(
            lambda: fabric.status_of(pair[1])["containerID"] != before, "its container starts again"
        )
        for one in pair:
            fabric.await_rounds(one)
        assert environment_of(node, pair[1]).items() >= given.items()
        again = offers.prepared(node, uid)
        assert first is not None
        assert again == {**first, "bootId": node.boot_id.read_text().strip()}

        assert "unprepare" not in gpus.calls(uid)
        assert fabric.clear() == []
        eventually(lambda: gpus.calls(uid)[-1] == "unprepare", "the claim is given back")
        eventually(lambda: offers.prepared(node, uid) is None, "our driver has forgotten it")
        assert offers.cdi_files(node, uid) == []
        fabric.api.delete(f"{offers.TEMPLATES}/both", {})


def test_a_device_plugin_offers_slots_again_after_its_kubelet_restarted(fabric: Fabric) -> None:
    node = fabric.nodes[0]

    def allocatable(since: datetime) -> int:
        """As the kubelet said after that time; 0 before."""
        status = fabric.api.get(f"{NODES}/{node.name}")["status"]
        (ready,) = [one for one in status["conditions"] if one["type"] == "Ready"]
        heard = datetime.fromisoformat(ready["lastHeartbeatTime"])
        return int(status["allocatable"].get(offers.SLOT, 0)) if heard > since else 0

    with offers.device_plugin(fabric, node):
        begun = datetime.now(UTC)
        eventually(lambda: allocatable(begun) > 0, "the kubelet offers slots")
        limits: Json = {"container": {"resources": {"limits": {offers.SLOT: "1"}}}}
        first = fabric.create("plugged", node, **limits)
        fabric.await_rounds(first)
        assert environment_of(node, first)["EPFABRIC_RAILS"] == "0"
        node.stop_kubelet()
        stopped = datetime.now(UTC)
        node.start_kubelet()
        eventually(lambda: allocatable(stopped) > 0, "the kubelet offers slots again")
        second = fabric.create("plugged-later", node, **limits)
        for one in (first, second):
            fabric.await_rounds(one)
        assert environment_of(node, second)["EPFABRIC_RAILS"] == "0"
        assert fabric.joined(first) == 1
        assert fabric.clear() == []
