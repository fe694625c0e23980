"""Agents with a real API server and operator: certified, in status, with a group in its EPGroup."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract.conftest import rendered
from contract.stand import NODES_NAMESPACE, Stand
from epfabric_agent.csi import records
from epfabric_agent.kube import settings_file
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
    commands: dict[str, list[str | Path]]
    agents: dict[str, Process]
    states: dict[str, Path]
    space: str

    def start(self, node: str) -> None:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
        processes, name = self.stand.cluster.processes, f"agent-{node}-{len(self.agents)}"
        self.agents[node] = processes.start(name, self.commands[node], env=environ)

    def run(self, group: str, world: int) -> list[dict[str, object]]:
        """A world of ranks, and what they printed at their end."""
        results = []
        for process in self.ranks(group, world):
            code = process.wait(RUN_S)
            assert code == 0, process.tail()
            results.append(json.loads(process.log.read_text().strip().splitlines()[-1]))
        return results

    def ranks(self, group: str, world: int, *options: str) -> list[Process]:
        """They are spread over the nodes, each by its own pod's socket."""
        running = []
        for rank in range(world):
            node = list(self.agents)[rank * len(self.agents) // world]
            place = publish(self, node, group, rank)
            wait_until(place.exists, READY_S, "the pod's socket", self.agents[node])
            command: list[str | Path] = [
                *(sys.executable, ROOT / "examples/moe_rank.py", f"--socket={place}"),
                *(f"--rank={rank}", f"--world-size={world}", "--tokens=8", "--topk=4"),
                *("--experts=16", "--iterations=1", "--barriers=50"),
                *options,
            ]
            processes = self.stand.cluster.processes
            running.append(processes.start(f"{self.fabric}-{group}-{rank}", command))
        return running


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
    states: dict[str, Path] = {}
    made = Site(stand, fabric, {}, {}, states, space)
    for index, node in enumerate(nodes):
        states[node] = folder / node
        states[node].mkdir(parents=True)
        config = stand.token_kubeconfig(folder, node)
        made.commands[node] = [
            *(AGENT, f"--node={node}", f"--fabric={fabric}", f"--address=127.0.4.{index + 1}"),
            *("--port=0", f"--state-dir={states[node]}", f"--kubeconfig={config}"),
            f"--namespace={NODES_NAMESPACE}",
        ]
        made.start(node)
    try:
        yield made
    finally:
        for agent in made.agents.values():
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


@pytest.fixture(scope="module")
def later() -> Iterator[contextlib.ExitStack]:
    """What is started in place of something that a test has killed."""
    with contextlib.ExitStack() as stack:
        yield stack


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
        lease = stand.find("lease", names.agent_lease(node), "-n", NODES_NAMESPACE)
        assert lease["spec"]["holderIdentity"].startswith(node)
        (owner,) = lease["metadata"]["ownerReferences"]
        assert owner["uid"] == stand.find("epfabricnode", node)["metadata"]["uid"]
        kept = settings_file.kept(site.states[node], node, site.fabric)
        assert kept is not None, "settings for a start without API server"


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


def test_a_killed_agent_serves_its_pods_again_at_the_same_place(site: Site) -> None:
    site.run("restarted", 2)
    completed(site, "restarted", 1)
    node = next(iter(site.agents))
    place = publish(site, node, "restarted", 0)
    directory = place.parent.stat().st_ino
    site.agents[node].signal(signal.SIGKILL)
    site.agents[node].wait(READY_S)
    site.start(node)

    wait_until(lambda: listens(place), READY_S, "the pod's socket", site.agents[node])
    assert place.parent.stat().st_ino == directory
    assert {result["epoch"] for result in site.run("restarted", 2)} == {2}


def test_a_group_ends_in_order_while_the_api_server_is_away(site: Site) -> None:
    """The ranks leave while it is stopped; the EPGroup is written when it is back."""
    server = api_server(site)
    running = site.ranks("away", 2, "--hold-s=4")
    ready = lambda: group_of(site, "away").get("status", {}).get("phase") == "Ready"  # noqa: E731
    try:
        site.stand.eventually(ready, "the group to be Ready", *site.agents.values())
        os.kill(server, signal.SIGSTOP)
        for process in running:
            assert process.wait(RUN_S) == 0, process.tail()
    finally:
        os.kill(server, signal.SIGCONT)
    completed(site, "away", 1)


def test_a_group_ends_with_right_numbers_though_operator_and_api_server_are_killed(
    site: Site, operator: Process, later: contextlib.ExitStack
) -> None:
    """At a random moment of its exchange."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    plane = site.stand.cluster.control_plane
    running = site.ranks("orphaned", 4, "--iterations=400", "--barriers=500")
    ready = lambda: group_of(site, "orphaned").get("status", {}).get("phase") == "Ready"  # noqa: E731
    site.stand.eventually(ready, "the group to be Ready", *site.agents.values())
    time.sleep(random.Random(seed).uniform(0.0, 1.0))
    operator.signal(signal.SIGKILL)
    plane.kill_api_server()
    try:
        assert not any(process.ended.is_set() for process in running), "the exchange is too short"
        for process in running:
            assert process.wait(RUN_S) == 0, process.tail()
            result = json.loads(process.log.read_text().strip().splitlines()[-1])
            assert result["ok"]
            assert result["bytes_verified"] > 0
    finally:
        plane.start_api_server()
        later.enter_context(site.stand.operator())
    completed(site, "orphaned", 1)
    assert not any(agent.ended.is_set() for agent in site.agents.values())


def test_an_agent_waits_for_the_one_before_it_on_its_node(site: Site) -> None:
    """As when a node goes to another fabric: the agents' pods overlap."""
    node, processes = next(iter(site.agents)), site.stand.cluster.processes
    before = site.agents[node]
    after = processes.start(f"{node}-after", site.commands[node])
    wait_until(lambda: "another agent" in after.tail(100), READY_S, "to wait", after)
    assert f"process {before.pid}" in after.tail(100)
    assert "certified as" not in after.tail(100)
    before.stop()
    wait_until(lambda: "certified as" in after.tail(100), READY_S, "to go on", after)
    site.agents[node] = after


def test_a_removed_nodes_lease_goes_with_it(site: Site) -> None:
    stand, node = site.stand, list(site.agents)[-1]
    site.agents[node].stop()
    assert stand.find("lease", names.agent_lease(node), "-n", NODES_NAMESPACE)
    stand.cluster.kubectl("delete", "node", node)

    def gone() -> bool:
        left = stand.find("lease", names.agent_lease(node), "-n", NODES_NAMESPACE)
        return left is None and stand.find("epfabricnode", node) is None

    stand.eventually(gone, "the EPFabricNode and the Lease to go")


def api_server(site: Site) -> int:
    """Its process."""
    port = f"--secure-port={site.stand.cluster.url.rpartition(':')[2]}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if port in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    assert len(found) == 1
    return found[0]


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(str(path)) == 0


def completed(site: Site, name: str, epoch: int) -> dict[str, Any]:
    def done() -> bool:
        status = group_of(site, name).get("status", {})
        ended = status.get("phase") == "Completed" and status.get("epoch") == epoch
        return ended and "barriers" in status

    site.stand.eventually(done, f"group {name} to complete epoch {epoch}", *site.agents.values())
    return group_of(site, name)


def group_of(site: Site, name: str) -> dict[str, Any]:
    found = site.stand.find("epgroup", name, "-n", site.space) or {}
    return found if isinstance(found, dict) else {}
