"""Pods that exchange while parts of their node go away and come back."""

from __future__ import annotations

import pytest

from .fabric import Fabric, Inode, Json, eventually

pytestmark = pytest.mark.timeout(300)


def same_container(fabric: Fabric, one: Json, before: Json) -> None:
    now = fabric.status_of(one)
    assert now["containerID"] == before["containerID"]
    assert now["restartCount"] == 0


@pytest.mark.parametrize("part", ["kubelet", "containerd"])
def test_ranks_do_not_notice_a_restart(fabric: Fabric, part: str) -> None:
    """A new pod's volume then comes through the driver, which the kubelet found again."""
    pair = fabric.pair(part)
    before = [fabric.status_of(one) for one in pair]
    node = fabric.nodes[1]
    getattr(node, f"stop_{part}")()
    try:
        # Of the other node: containerd writes the logs of this one. In a round both wait for both.
        fabric.await_rounds(pair[0], 3)
    finally:
        getattr(node, f"start_{part}")()
    later = fabric.create(f"after-{part}", node)
    fabric.await_rounds(later)
    for one, status in zip(pair, before, strict=True):
        fabric.await_rounds(one)
        assert fabric.joined(one) == 1
        same_container(fabric, one, status)


def test_an_agent_that_comes_back_serves_the_same_directory(fabric: Fabric) -> None:
    pair = fabric.pair("agent")
    node = fabric.nodes[0]
    directory = fabric.inode_in(pair[0])
    made = (fabric.volume_in(pair[0]) / "agent.sock").stat().st_ctime_ns
    before = [fabric.status_of(one) for one in pair]
    (agent,) = [one for one in fabric.agents() if one["spec"]["nodeName"] == node.name]
    path = f"/api/v1/namespaces/{agent['metadata']['namespace']}/pods"
    fabric.api.delete(f"{path}/{agent['metadata']['name']}", {})
    eventually(
        lambda: (fabric.volume_in(pair[0]) / "agent.sock").stat().st_ctime_ns > made,
        "a new socket lies in the pod's directory",
    )
    for one, status in zip(pair, before, strict=True):
        eventually(lambda one=one: fabric.joined(one) > 1, "the rank joined again")  # type: ignore[misc]
        fabric.await_rounds(one)
        same_container(fabric, one, status)
    assert fabric.inode_in(pair[0]) == directory


def test_a_driver_that_comes_back_finds_its_volumes(fabric: Fabric) -> None:
    """Its pods are unpublished in the end, as the fixture asserts."""
    pair = fabric.pair("driver")
    directories: list[Inode] = [fabric.inode_in(one) for one in pair]
    for driver in fabric.ours("app.kubernetes.io/name=epfabric-csi"):
        path = f"/api/v1/namespaces/{driver['metadata']['namespace']}/pods"
        fabric.api.delete(f"{path}/{driver['metadata']['name']}", {"gracePeriodSeconds": 0})
    later = [fabric.create(f"after-driver-{n}", node) for n, node in enumerate(fabric.nodes)]
    for one in (*pair, *later):
        fabric.await_rounds(one)
    assert [fabric.joined(one) for one in pair] == [1, 1]
    assert [fabric.inode_in(one) for one in pair] == directories
