"""The registered driver, asked on its own socket what a kubelet rarely asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import csi_client
from harness.csi_client import CsiError
from harness.node.node import Node

from .fabric import Fabric, Json

SOCKET = "var/lib/kubelet/plugins/csi.epfabric.io/csi.sock"


def volume_of(one: Json) -> tuple[str, str, dict[str, str]]:
    """The volume's id, its target as the kubelet says it, and its context."""
    uid = one["metadata"]["uid"]
    (volume,) = [volume for volume in one["spec"]["volumes"] if "csi" in volume]
    target = f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{volume['name']}/mount"
    context = csi_client.volume_context(volume["csi"]["volumeAttributes"], one)
    return csi_client.volume_id(uid, volume["name"]), target, context


def socket_of(node: Node) -> Path:
    return node.root / SOCKET


def test_a_volume_published_again_stays_as_it_is(fabric: Fabric) -> None:
    pair = fabric.pair("twice")
    before = fabric.inode_in(pair[0])
    node = fabric.node_of(pair[0])
    volume, target, context = volume_of(fabric.read(pair[0]))
    record = node.root / "var/lib/epfabric/records" / f"{volume}.json"
    assert record.exists(), "the kubelet calls the volume by another name"
    for _ in range(2):
        csi_client.publish(socket_of(node), volume, target, context)
    other = {**context, "csi.storage.k8s.io/pod.name": "another"}
    with pytest.raises(CsiError) as refused:
        csi_client.publish(socket_of(node), volume, target, other)
    assert refused.value.code in ("ALREADY_EXISTS", "FAILED_PRECONDITION")
    mounts = (node.root / "proc/1/mountinfo").read_text()
    assert mounts.count(f" {target} ") == 1
    assert fabric.inode_in(pair[0]) == before
    for one in pair:
        fabric.await_rounds(one)
        assert fabric.joined(one) == 1


def test_what_nobody_published_can_be_unpublished(fabric: Fabric) -> None:
    pair = fabric.pair("unknown")
    for node in fabric.nodes:
        uid = "00000000-0000-0000-0000-000000000000"
        target = f"/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/epfabric/mount"
        for _ in range(2):
            csi_client.unpublish(socket_of(node), csi_client.volume_id(uid, "epfabric"), target)
    for one in pair:
        fabric.await_rounds(one)
        assert fabric.joined(one) == 1
