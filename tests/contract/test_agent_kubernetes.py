"""Agents with a real API server and operator: certified, in status, with a group in its EPGroup."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract.conftest import rendered
from contract.stand import NAMESPACE, Stand
from epfabric_agent.csi import records
from epfabric_crds import names
from harness.process import Process, wait_until

AGENT = Path(sys.executable).with_name("epfabric-agent")
ROOT = Path(__file__).resolve().parents[2]
READY_S = 90.0
RUN_S = 120.0
JOB = {"apiVersion": "batch/v1", "kind": "Job"}


@dataclass(frozen=True)
class Site:
    stand: Stand
    fabric: str
    agents: dict[str, Process]
    states: dict[str, Path]
    space: str

    def run(self, group: str, world: int) -> list[dict[str, object]]:
        """A world of ranks, spread over the nodes, each by its own pod's socket."""
        running = []
        for rank in range(world):
            node = list(self.agents)[rank * len(self.agents) // world]
            socket = publish(self, node, group, rank)
            wait_until(socket.exists, READY_S, "the pod's socket", self.agents[node])
            command: list[str | Path] = [
                *(sys.executable, ROOT / "examples/moe_rank.py", f"--socket={socket}"),
                *(f"--rank={rank}", f"--world-size={world}", "--tokens=8", "--topk=4"),
                *("--experts=16", "--iterations=1", "--barriers=50"),
            ]
            processes = self.stand.cluster.processes
            running.append(processes.start(f"{self.fabric}-{group}-{rank}", command))
        results = []
        for process in running:
            code = process.wait(RUN_S)
            assert code == 0, process.tail()
            results.append(json.loads(process.log.read_text().strip().splitlines()[-1]))
        return results


def publish(site: Site, node: str, group: str, rank: int) -> Path:
    """What the CSI driver writes for one pod; the path of the socket that its agent will bind."""
    state = site.states[node]
    volume = f"csi-{group}-{rank}"
    directory = records.volumes_dir(state) / volume
    directory.mkdir(parents=True, exist_ok=True)
    record = records.Record(
        boot_id=records.boot_id(),
        volume_id=volume,
        namespace=site.space,
        pod=f"{group}-{rank}",
        pod_uid=f"{group}-{rank}-uid",
        service_account="default",
        fabric=site.fabric,
        group=group,
        owner=None,
        directory=str(directory),
        target_path="/nowhere",
    )
    records.write(state, record)
    return directory / "agent.sock"


@pytest.fixture(scope="module")
def site(stand: Stand, operator: Process) -> Iterator[Site]:
    fabric = f"{stand.prefix}-agents"
    nodes = [f"{fabric}-{i}" for i in range(2)]
    for node in nodes:
        stand.node(node, fabric)
    stand.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(agent_rights(fabric)))
    proxies = {"perGPU": 1, "idle": "adaptive"}
    stand.apply(stand.fabric(fabric, proxies=proxies))
    space = f"{fabric}-jobs"
    stand.cluster.kubectl("create", "namespace", space)
    folder = stand.cluster.folder / fabric
    agents, states = {}, {}
    for index, node in enumerate(nodes):
        states[node] = folder / node
        states[node].mkdir(parents=True)
        config = stand.token_kubeconfig(folder, node)
        agents[node] = stand.cluster.processes.start(
            f"agent-{node}",
            [
                *(AGENT, f"--node={node}", f"--fabric={fabric}", f"--address=127.0.4.{index + 1}"),
                *("--port=0", f"--state-dir={states[node]}", f"--kubeconfig={config}"),
                f"--namespace={NAMESPACE}",
            ],
            env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")},
        )
    try:
        yield Site(stand, fabric, agents, states, space)
    finally:
        for agent in agents.values():
            agent.stop()
        stand.cluster.kubectl("delete", "epfabric", fabric, "--ignore-not-found")
        stand.cluster.kubectl("delete", "namespace", space, "--wait=false")


def agent_rights(name: str) -> list[dict[str, object]]:
    """The chart's own rights for agents, under names that no installed chart has."""
    kinds = {"ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"}
    found = rendered(kinds, names.AGENT_ACCOUNT)
    for document in found:
        document["metadata"]["name"] = name
        if "roleRef" in document:
            document["roleRef"]["name"] = name
    return found


def test_agents_become_ready_with_status_and_lease(site: Site) -> None:
    stand, processes = site.stand, site.agents.values()
    ready = lambda: stand.condition("epfabric", site.fabric, "Ready").get("status") == "True"  # noqa: E731
    stand.eventually(ready, "the fabric to be Ready", *processes)
    for index, node in enumerate(site.agents):
        status = stand.find("epfabricnode", node)["status"]
        assert status["endpoint"].startswith(f"127.0.4.{index + 1}:")
        assert status["transport"]["type"] == "libfabric"
        assert "tcp is allowed" in status["transport"]["reason"]
        assert status["topology"]["cpus"]
        assert status["sessions"] == 0
        lease = stand.find("lease", names.agent_lease(node), "-n", NAMESPACE)
        assert lease["spec"]["holderIdentity"].startswith(node)


def test_a_group_runs_over_two_agents_and_its_epgroup_tells(site: Site) -> None:
    results = site.run("training", 4)
    assert {result["epoch"] for result in results} == {1}
    group = completed(site, "training", 1)
    assert group["spec"] == {"fabric": site.fabric, "worldSize": 4}
    status = group["status"]
    assert [part["ranks"] for part in status["nodes"]] == ["0-1", "2-3"]
    assert status["coordinator"]["node"] == next(iter(site.agents))
    assert status["barriers"]["count"] >= 50
    assert 0 < status["barriers"]["p50Seconds"] <= status["barriers"]["p99Seconds"]


def test_a_group_that_comes_again_has_the_next_epoch(site: Site) -> None:
    site.run("again", 2)
    completed(site, "again", 1)
    results = site.run("again", 2)
    assert {result["epoch"] for result in results} == {2}
    completed(site, "again", 2)


def completed(site: Site, name: str, epoch: int) -> dict[str, Any]:
    def group() -> dict[str, Any]:
        found = site.stand.find("epgroup", name, "-n", site.space) or {}
        return found if isinstance(found, dict) else {}

    def done() -> bool:
        status = group().get("status", {})
        ended = status.get("phase") == "Completed" and status.get("epoch") == epoch
        return ended and "barriers" in status

    site.stand.eventually(done, f"group {name} to complete epoch {epoch}", *site.agents.values())
    return group()
