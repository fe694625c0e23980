"""Pods that are removed in every way: none stays Terminating, none takes anything from others."""

from __future__ import annotations

import subprocess

import pytest

from .fabric import PODS, SPACE, Fabric, eventually, volumes_on

pytestmark = pytest.mark.timeout(300)

TOUCH = """
cd /var/run/epfabric || exit 9
echo x > mine && exit 1
echo x > agent.sock && exit 2
rm -f agent.sock && exit 3
mkdir d && exit 4
chmod 0 . && exit 5
umount . 2>/dev/null && exit 6
mount -o remount,rw . 2>/dev/null && exit 7
sleep 600
"""


def test_a_pod_removed_by_force_leaves_nothing_on_its_node(fabric: Fabric) -> None:
    """The API server forgets it at once; the kubelet cleans up after it by itself."""
    pair = fabric.pair("force")
    node = fabric.node_of(pair[0])
    pid = node.pids(pair[0]["metadata"]["uid"])[0]
    assert volumes_on(node) != []
    fabric.remove(pair[0], grace_s=0)
    eventually(lambda: not fabric.exists(f"{PODS}/force-0"), "the pod is forgotten")
    eventually(lambda: volumes_on(node) == [], "its volume is gone")
    eventually(lambda: not node.is_running(pid), "its process is gone")
    again = fabric.create("force-0", node, group="force", rank=0, world=2)
    fabric.await_rounds(again)


def test_a_root_pod_changes_nothing_in_its_volume(fabric: Fabric) -> None:
    """Root in the pod, with all rights over files; the exit status tells what it could do."""
    pair = fabric.pair("beside")
    space = f"{SPACE}-root"
    fabric.make_space(space, enforce="baseline")
    try:
        root = fabric.create(
            "root",
            fabric.nodes[0],
            space=space,
            command=["sh", "-c", TOUCH],
            securityContext={"runAsUser": 0},
            container={"securityContext": {"runAsUser": 0}},
        )
        eventually(lambda: fabric.running(root), "the pod found nothing that it could change")
        shown = subprocess.run(
            ["ls", f"{fabric.volume_in(root)}"], capture_output=True, text=True, check=True
        ).stdout
        assert shown.split() == ["agent.sock"]
        for one in pair:
            fabric.await_rounds(one)
            assert fabric.joined(one) == 1
        assert fabric.running(root), fabric.status_of(root)
    finally:
        fabric.api.delete(f"/api/v1/namespaces/{space}", {})
        eventually(
            lambda: not fabric.exists(f"/api/v1/namespaces/{space}"), "its namespace is gone"
        )


@pytest.mark.parametrize("first", ["fabric", "both", "pods"])
def test_a_fabric_and_its_pods_go_in_any_order(fabric: Fabric, first: str) -> None:
    pair = fabric.pair(f"order-{first}")
    if first == "fabric":
        fabric.delete()
        fabric.await_gone()
        assert [fabric.running(one) for one in pair] == [True, True]
        assert fabric.clear() == []
    elif first == "both":
        for one in pair:
            fabric.remove(one)
        fabric.delete()
        assert fabric.clear() == []
    else:
        assert fabric.clear() == []
        fabric.delete()
    fabric.await_gone()
    fabric.apply()
