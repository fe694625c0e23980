"""Two agents by a manifest on loopback addresses, and ranks that attach to them; for this tier."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import yaml
from harness.process import Process, Processes, wait_until

ROOT = Path(__file__).resolve().parents[2]
AGENT = Path(sys.executable).with_name("epfabric-agent")
RANK = Path(__file__).with_name("rank.py")
ADDRESSES = {"a": "127.0.5.1", "b": "127.0.5.2"}
WAIT_S = 60.0


class TwoAgents:
    addresses: ClassVar[dict[str, str]] = ADDRESSES
    spec: ClassVar[dict[str, str]] = {}

    def __init__(
        self, processes: Processes, groups: tuple[str, ...] = ("moe",), **barrier: str
    ) -> None:
        self.processes = processes
        self.folder = processes.folder
        self.manifest = self._manifest(groups, barrier)
        self.pki("init")
        for node, address in self.addresses.items():
            self.pki("issue", f"--node={node}", "--fabric=moe", f"--address={address}")
        self.agents = {node: self.start(node) for node in self.addresses}
        for node, agent in self.agents.items():
            wait_until(lambda n=node: self.listens(n), WAIT_S, f"agent {node}", agent)  # type: ignore[misc]

    def socket(self, node: str, group: str = "moe") -> Path:
        return self.folder / node / "sockets" / group / "agent.sock"

    def listens(self, node: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self.socket(node))) == 0

    def start(self, node: str, name: str = "") -> Process:
        return self.processes.start(
            name or f"agent-{node}",
            [
                *(AGENT, f"--manifest={self.manifest}", f"--node={node}"),
                *(f"--pki={self.folder / 'pki'}", f"--state-dir={self.folder / node}"),
            ],
            env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")},
        )

    def rank(self, node: str, rank: int, world: int, *options: str, name: str = "") -> Process:
        return self.processes.start(
            name or f"rank-{rank}",
            [sys.executable, RANK, str(self.socket(node)), str(rank), str(world), *options],
        )

    def ranks(self, *options: str, prefix: str = "rank") -> list[Process]:
        """Four ranks, two on each node."""
        return [self.rank("aabb"[r], r, 4, *options, name=f"{prefix}-{r}") for r in range(4)]

    def pki(self, command: str, *options: str) -> None:
        done = self.processes.start(
            f"pki-{command}-{len(options)}", [AGENT, "pki", command, self.folder / "pki", *options]
        )
        assert done.wait(WAIT_S) == 0, done.tail()

    def _manifest(self, groups: tuple[str, ...], barrier: dict[str, str]) -> Path:
        fabric, peers = yaml.safe_load_all((ROOT / "examples/two-agents/fabric.yaml").read_text())
        fabric["spec"]["barrier"] |= barrier
        peers["groups"] = list(groups)
        fabric["spec"] |= self.spec
        peers["peers"] = [
            {"node": node, "endpoint": f"{address}:{free_port(address)}"}
            for node, address in self.addresses.items()
        ]
        path = self.folder / "fabric.yaml"
        path.write_text(yaml.safe_dump_all([fabric, peers]))
        return path


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def says(process: Process, text: str) -> bool:
    return text in process.tail(200)


@contextmanager
def two_agents(groups: tuple[str, ...] = ("moe",), **barrier: str) -> Iterator[TwoAgents]:
    """Ended with everything that was started, whatever happens."""
    with Processes("epfabric-agents-") as processes:
        yield TwoAgents(processes, groups, **barrier)
