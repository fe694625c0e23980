"""Calls between ranks of two nodes: kernels, FIFO, two real agents over tcp, signals.

The nodes are two agents of this machine, and all ranks share its GPU; what goes between the nodes
lies in host memory. Needs what test_brokered.py needs.
"""

from __future__ import annotations

import importlib
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")
yaml = pytest.importorskip("yaml", reason="the agent cannot run here")
for needed in ("grpc", "cryptography", "pyroute2", "opentelemetry.sdk", "requests"):
    pytest.importorskip(needed, reason="the agent cannot run here")
importlib.import_module("opentelemetry.exporter.otlp.proto.http")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from harness.process import Process, Processes, wait_until  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
RANKS = ("proxied_rank.py", "internode_rank.py")  # of low-latency calls alone, of both kinds
AGENT = (sys.executable, "-m", "epfabric_agent.main")
ADDRESSES = {"a": "127.0.7.1", "b": "127.0.7.2"}
WAIT_S = 200.0


class Nodes:
    """Two agents; ranks reach theirs at `socket`."""

    def __init__(self, processes: Processes) -> None:
        self.processes, self.folder = processes, processes.folder
        self.manifest, pki = self.folder / "fabric.yaml", self.folder / "pki"
        fabric, peers = yaml.safe_load_all((ROOT / "examples/two-agents/fabric.yaml").read_text())
        peers["groups"] = ["moe"]
        peers["peers"] = [
            {"node": node, "endpoint": f"{address}:{free_port(address)}"}
            for node, address in ADDRESSES.items()
        ]
        self.manifest.write_text(yaml.safe_dump_all([fabric, peers]))
        self.pki("init", str(pki))
        for node, address in ADDRESSES.items():
            self.pki("issue", str(pki), f"--node={node}", "--fabric=moe", f"--address={address}")
        self.agents = {node: self.start(node, pki) for node in ADDRESSES}
        for node, agent in self.agents.items():
            wait_until(self.socket(node).exists, WAIT_S, f"agent {node}", agent)

    def socket(self, node: str) -> Path:
        return self.folder / node / "sockets" / "moe" / "agent.sock"

    def pki(self, *options: str) -> None:
        subprocess.run([*AGENT, "pki", *options], cwd=ROOT, check=True, timeout=60)

    def start(self, node: str, pki: Path) -> Process:
        options = [f"--manifest={self.manifest}", f"--node={node}", f"--pki={pki}"]
        options += [f"--state-dir={self.folder / node}"]
        return self.processes.start(f"agent-{node}", [*AGENT, *options], cwd=ROOT)

    def run(self, program: str, nodes: str, end: str) -> list[Any]:
        """What each rank says, by rank; nodes: of each, by its letter."""
        file = str(Path(__file__).with_name(program))
        seed = secrets.randbits(24)
        print(f"seed {seed}")
        ranks = [
            self.processes.start(
                f"rank-{seed}-{rank}",
                [sys.executable, file, str(self.socket(node)), str(len(nodes)), str(rank),
                 "0", str(seed), end],
                cwd=ROOT,
            )
            for rank, node in enumerate(nodes)
        ]  # fmt: skip
        for process in ranks:
            logs = "\n".join(agent.tail() for agent in self.agents.values())
            assert process.wait(WAIT_S) == 0, f"{process.tail()}\n{logs}"
        talking = ranks[:-1] if end == "lost" else ranks
        said = [json.loads(process.tail(1).splitlines()[-1]) for process in talking]
        print(*said, sep="\n")
        return said


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def pair() -> Iterator[Nodes]:
    with Processes("epfabric-proxied-") as processes:
        yield Nodes(processes)


@pytest.mark.parametrize("nodes", ["ab", "aabb"])
@pytest.mark.parametrize("program", RANKS)
def test_tokens_reach_the_experts_of_another_node_and_come_back(
    pair: Nodes, program: str, nodes: str
) -> None:
    for rank, said in enumerate(pair.run(program, nodes, "together")):
        elsewhere = [other for other, node in enumerate(nodes) if node != nodes[rank]]
        assert said["proxied"] == elsewhere, "those of the node are reached by their memory"
        assert said.get("node_ranks", len(nodes) // 2) == len(nodes) // 2


@pytest.mark.parametrize("program", RANKS)
def test_a_lost_rank_of_another_node_ends_what_kernels_wait_for(pair: Nodes, program: str) -> None:
    (said,) = pair.run(program, "ab", "lost")
    assert "the buffer has failed" in said["error"], said
    assert "rank 1" in said["error"], said
