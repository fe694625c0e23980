"""Real agents as processes, with bound tokens and pods' records; for tests of this tier."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from contract.conftest import rendered
from contract.stand import NODES_NAMESPACE, Stand
from epfabric_agent.csi import records
from epfabric_crds import names
from harness.process import Process, wait_until

AGENT = Path(sys.executable).with_name("epfabric-agent")
ROOT = Path(__file__).resolve().parents[2]
READY_S = 90.0
RUN_S = 120.0


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
            running.append(self.rank(place, group, rank, world, *options))
        return running

    def rank(self, place: Path, group: str, rank: int, world: int, *options: str) -> Process:
        command: list[str | Path] = [
            *(sys.executable, ROOT / "examples/moe_rank.py", f"--socket={place}"),
            *(f"--rank={rank}", f"--world-size={world}", "--tokens=8", "--topk=4"),
            *("--experts=16", "--iterations=1", "--barriers=50"),
            *options,
        ]
        return self.stand.cluster.processes.start(f"{self.fabric}-{group}-{rank}", command)


def publish(site: Site, node: str, group: str, rank: int, tenant: str = "") -> Path:
    """What the CSI driver writes for one pod; the path of the socket that its agent will bind."""
    state = site.states[node]
    volume = f"csi-{group}-{rank}"
    directory = records.volumes_dir(state) / volume
    directory.mkdir(parents=True, exist_ok=True)
    # There is no pod to own the EPGroup: without an owner that exists it would be collected.
    space = site.stand.json("get", "namespace", site.space)["metadata"]
    record = records.Record(
        boot_id=records.boot_id(),
        volume_id=volume,
        namespace=site.space,
        pod=f"{group}-{rank}",
        pod_uid=f"{group}-{rank}-uid",
        service_account="default",
        fabric=site.fabric,
        group=group,
        owner=records.Owner("v1", "Namespace", space["name"], space["uid"]),
        directory=str(directory),
        target_path="/nowhere",
        tenant=tenant,
    )
    records.write(state, record)
    return directory / "agent.sock"


@contextlib.contextmanager
def running_site(stand: Stand, fabric: str, count: int) -> Iterator[Site]:
    """`count` agents of a fabric of their own, and a namespace for its pods."""
    nodes = [f"{fabric}-{i}" for i in range(count)]
    for node in nodes:
        stand.node(node, fabric)
    stand.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(agent_rights(fabric)))
    proxies = {"perGPU": 1, "idle": "adaptive"}
    small = {"name": "small", "namespaceSelector": {}, "maxSessions": 1}
    stand.apply(stand.fabric(fabric, proxies=proxies, tenants=[small]))
    space = f"{fabric}-jobs"
    stand.cluster.kubectl("create", "namespace", space)
    folder = stand.cluster.folder / fabric
    states: dict[str, Path] = {}
    made = Site(stand, fabric, {}, {}, states, space)
    for node in nodes:
        states[node] = folder / node
        states[node].mkdir(parents=True)
        config = stand.token_kubeconfig(folder, node)
        made.commands[node] = [
            *(AGENT, f"--node={node}", f"--fabric={fabric}", f"--address={stand.addresses[node]}"),
            *("--port=0", f"--state-dir={states[node]}", f"--kubeconfig={config}"),
            f"--namespace={NODES_NAMESPACE}",
        ]
        made.start(node)
    try:
        yield made
    finally:
        for agent in made.agents.values():
            agent.stop()
        stand.delete("epfabric", fabric)
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


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(str(path)) == 0
