"""Nodes stay ready as long as they report; a stopped kubelet leaves nothing of theirs behind."""

from __future__ import annotations

from pathlib import Path

from harness.cluster import Cluster
from harness.kubelet.kubelet import Kubelet
from harness.nodes import Nodes
from harness.process import wait_until

from .bench import WAIT_S, Running

LOST_S = 120.0


def ready(running: Running, name: str) -> str:
    conditions = running.api.get(f"/api/v1/nodes/{name}")["status"]["conditions"]
    return str(next(c["status"] for c in conditions if c["type"] == "Ready"))


def test_silent_node_is_lost_and_comes_back(running: Running) -> None:
    lost, other = running.nodes.names[0], running.nodes.names[1]
    running.nodes.silence(lost)
    try:
        wait_until(lambda: ready(running, lost) == "Unknown", LOST_S, "the loss of the node")
        assert ready(running, other) == "True"
    finally:
        running.nodes.restore(lost)
    wait_until(lambda: ready(running, lost) == "True", WAIT_S, "the node's return")


def test_stopped_kubelet_leaves_no_process_and_no_mount(running: Running, cluster: Cluster) -> None:
    root = cluster.folder / "stopped"
    nodes = Nodes(cluster.kubeconfig, 1, labels={"stopped": "true"}, prefix="stopped")
    kubelet = Kubelet(cluster.kubeconfig, root, nodes.addresses)
    nodes.start()
    kubelet.start()
    try:
        running.create(
            "stopped",
            ["sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"],
            nodeSelector={"stopped": "true"},
            volumes=[{"name": "memory", "emptyDir": {"medium": "Memory"}}],
            container={"volumeMounts": [{"name": "memory", "mountPath": "/m"}]},
        )
        running.await_phase("stopped", "Running")
        pids = kubelet.pids("kubelet-test", "stopped")
        assert str(root) in Path("/proc/thread-self/mountinfo").read_text()
    finally:
        kubelet.stop()
        nodes.stop()
        nodes.delete()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert str(root) not in Path("/proc/thread-self/mountinfo").read_text()
    running.delete("stopped", gracePeriodSeconds=0)
