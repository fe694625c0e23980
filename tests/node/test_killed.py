"""Parts of a node killed by SIGKILL under live pods: they come back, and pods go as ever."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from .fabric import Fabric, Json, eventually

pytestmark = pytest.mark.timeout(300)


def kill(pids: list[int]) -> None:
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def await_restart(fabric: Fabric, one: Json) -> None:
    eventually(
        lambda: fabric.status_of(one).get("restartCount", 0) > 0, "its container is started again"
    )


def test_pods_go_when_agent_and_driver_were_killed(fabric: Fabric) -> None:
    """Both at once, and the pod is deleted before either is back."""
    pair = fabric.pair("killed")
    node = fabric.nodes[0]
    (driver,) = fabric.ours("app.kubernetes.io/name=epfabric-csi", node.name)
    (agent,) = fabric.ours("app.kubernetes.io/name=epfabric-agent", node.name)
    beside = fabric.create("beside", node)
    fabric.await_rounds(beside)
    directory = fabric.inode_in(beside)
    restarts = [fabric.status_of(one)["restartCount"] for one in (driver, agent)]
    pids = node.pids(pair[0]["metadata"]["uid"])
    kill([pid for one in (driver, agent) for pid in node.pids(one["metadata"]["uid"])])
    fabric.remove(pair[0])
    eventually(lambda: fabric.joined(beside) >= 2, "the pod beside it joins again")
    fabric.await_rounds(beside)
    fabric.await_nothing_of(pair[0], node, pids)
    again = fabric.create("again", node, group="killed", rank=0, world=2)
    for one in (again, pair[1]):
        fabric.await_rounds(one)
    for one, before in zip((driver, agent), restarts, strict=True):
        assert fabric.status_of(one)["restartCount"] > before, "it was not killed"
    assert fabric.inode_in(beside) == directory


def test_a_rank_and_a_shim_that_were_killed_leave_no_pod_behind(fabric: Fabric) -> None:
    """A container without its shim is lost to containerd, which ends it."""
    pair = fabric.pair("shim")
    pids = [node.pids(one["metadata"]["uid"]) for node, one in zip(fabric.nodes, pair, strict=True)]
    kill(pids[0])
    fabric.nodes[1].kill_shim(pair[1]["metadata"]["uid"])
    for one in pair:
        await_restart(fabric, one)
        fabric.await_rounds(one)
    assert not fabric.nodes[1].is_running(pids[1][0])
