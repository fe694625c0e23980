"""The exchange between two nodes without Kubernetes: a manifest, certificates, two agents.

The demo runs it while the programs of the control plane are being built.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from harness.controlplane import free_ports
from harness.demo import checks
from harness.demo.checks import Work, Wrong
from harness.demo.show import Show, table
from harness.demo.site import EXAMPLES
from harness.demo.wires import Sampler
from harness.process import Process, Processes, wait_until

NODES = {"a": "127.0.2.1", "b": "127.0.2.2"}
FABRIC = GROUP = "moe"
PROGRAM = Path(sys.executable).with_name("epfabric-agent")
READY_SECONDS = 60.0
RUN_SECONDS = 180.0


def exchange(processes: Processes, show: Show, work: Work) -> None:
    """Four ranks on two agents; every check that the exchange in the cluster has but telemetry."""
    show.step("exchange tokens between two nodes without Kubernetes")
    folder = processes.folder / "manifest"
    folder.mkdir()
    issue_certificates(folder / "pki")
    manifest = write_manifest(folder, work)
    agents = {node: start_agent(processes, manifest, folder, node) for node in NODES}
    for node, agent in agents.items():
        wait_until(socket_of(folder, node).exists, READY_SECONDS, f"the socket of {node}", agent)
    show.note(f"agents {', '.join(f'{node} on {ip}' for node, ip in NODES.items())} are up")
    with Sampler(lambda: {agent.pid: node for node, agent in agents.items()}) as sampler:
        results = run_ranks(processes, folder, work)
        sampler.look()
        stop_ranks_and_agents(agents)
    checks.check_results(results, work)
    expected = checks.payload_between(results, work)
    carried = sampler.carried()
    checks.check_carried(carried, expected, "tcp")
    verified = sum(result["bytes_verified"] for result in results)
    show.note(f"{work.world_size} ranks verified {verified:,} bytes, all equal")
    show.note(f"{work.barriers} barriers in {results[0]['barrier_seconds']:.2f} s")
    show.note(table(["from", "to", "payload", "tcp"], checks.rows_by_pair(expected, carried)))


def issue_certificates(folder: Path) -> None:
    run_agent("pki", "init", str(folder))
    for node, address in NODES.items():
        run_agent("pki", "issue", str(folder), f"--node={node}", f"--fabric={FABRIC}",
                  f"--address={address}")  # fmt: skip


def run_agent(*arguments: str) -> None:
    done = subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0:
        raise Wrong(f"epfabric-agent {' '.join(arguments)}: {done.stderr.strip()}")


def write_manifest(folder: Path, work: Work) -> Path:
    """examples/moe.yaml as it is, and where the two agents are."""
    ports = free_ports(len(NODES))
    peers: dict[str, Any] = {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPFabricPeers",
        "peers": [
            {"node": node, "endpoint": f"{address}:{port}"}
            for (node, address), port in zip(NODES.items(), ports, strict=True)
        ],
    }
    fabric = yaml.safe_load((EXAMPLES / "moe.yaml").read_text())
    path = folder / "fabric.yaml"
    path.write_text(yaml.safe_dump_all([fabric, peers]))
    return path


def start_agent(processes: Processes, manifest: Path, folder: Path, node: str) -> Process:
    return processes.start(
        f"agent-{node}",
        [
            PROGRAM,
            f"--manifest={manifest}",
            f"--node={node}",
            f"--pki={folder / 'pki'}",
            f"--state-dir={folder / node}",
            f"--socket-dir={folder / node / 'sockets'}",
        ],
    )


def socket_of(folder: Path, node: str) -> Path:
    """The ranks of one node and group share a socket."""
    return folder / node / "sockets" / GROUP / "agent.sock"


def run_ranks(processes: Processes, folder: Path, work: Work) -> list[dict[str, Any]]:
    """Ranks lie in order on the nodes, the same number on each."""
    node_of = [list(NODES)[rank * len(NODES) // work.world_size] for rank in range(work.world_size)]
    running = [
        processes.start(
            f"rank-{rank}",
            [
                sys.executable,
                EXAMPLES / "moe_rank.py",
                f"--socket={socket_of(folder, node_of[rank]).relative_to(folder)}",
                f"--rank={rank}",
                f"--world-size={work.world_size}",
                *work.arguments(),
            ],
            cwd=folder,  # a socket's path may be 107 bytes long, so it is a relative one
        )
        for rank in range(work.world_size)
    ]
    results = []
    for process in running:
        process.wait(RUN_SECONDS)
        results.append(checks.result_of(process.log.read_text(), process.name))
    return results


def stop_ranks_and_agents(agents: dict[str, Process]) -> None:
    for node, agent in agents.items():
        code = agent.stop()
        if code != 0:
            raise Wrong(f"agent {node} ended with {code} on SIGTERM\n{agent.tail()}")
