"""Four agents by a manifest on loopback addresses, and four ranks that meet; for this tier."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from agent.two_agents import AGENT, free_port
from epfabric_agent.pki import authority
from epfabric_agent.pki.identity import NodeIdentity
from harness.process import Processes, wait_until

ROOT = Path(__file__).resolve().parents[2]
RANK = Path(__file__).with_name("barrier_rank.py")
ADDRESSES = {node: f"127.0.6.{index}" for index, node in enumerate("abcd", 1)}
WAIT_S = 90.0

Times = list[tuple[int, int]]
"""Of each barrier: entered, let go (CLOCK_MONOTONIC, ns)."""


class FourAgents:
    """One rank on each; the group is named like the fabric."""

    def __init__(self, processes: Processes, fabric: str, telemetry: dict[str, Any]) -> None:
        self.processes = processes
        self.folder = processes.folder
        self.fabric = fabric
        pki = self.folder / "pki"
        authority.make_authority(pki, 1)
        for node, address in ADDRESSES.items():
            authority.issue(pki, NodeIdentity(node, fabric, address), 1, pki)
        manifest = self._manifest(telemetry)
        self.agents = {
            node: processes.start(
                f"agent-{node}",
                [
                    *(AGENT, f"--manifest={manifest}", f"--node={node}"),
                    *(f"--pki={pki}", f"--state-dir={self.folder / node}"),
                ],
                env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")},
            )
            for node in ADDRESSES
        }
        for node, agent in self.agents.items():
            wait_until(lambda n=node: self._listens(n), WAIT_S, f"agent {node}", agent)  # type: ignore[misc]

    def meet(self, plan: dict[str, Any]) -> list[Times]:
        """Runs one epoch of barriers; by rank."""
        board = self.folder / "board"
        np.zeros(len(ADDRESSES), np.uint64).tofile(board)
        ranks = [
            self.processes.start(
                f"rank-{rank}",
                [
                    *(sys.executable, RANK, str(self._socket(node))),
                    *(str(rank), str(len(ADDRESSES)), str(board), json.dumps(plan)),
                ],
            )
            for rank, node in enumerate(ADDRESSES)
        ]
        for process in ranks:
            assert process.wait(WAIT_S) == 0, process.tail()
        return [json.loads(process.log.read_text().splitlines()[-1]) for process in ranks]

    def stop(self) -> None:
        """All at once, so that it takes no longer than one; what they still had is sent then."""
        for agent in self.agents.values():
            agent.signal(15)
        for agent in self.agents.values():
            assert agent.wait(WAIT_S) == 0, agent.tail()

    def _socket(self, node: str) -> Path:
        return self.folder / node / "sockets" / self.fabric / "agent.sock"

    def _listens(self, node: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self._socket(node))) == 0

    def _manifest(self, telemetry: dict[str, Any]) -> Path:
        fabric, peers = yaml.safe_load_all((ROOT / "examples/two-agents/fabric.yaml").read_text())
        fabric["metadata"]["name"] = self.fabric
        fabric["spec"]["telemetry"] = telemetry
        peers["peers"] = [
            {"node": node, "endpoint": f"{address}:{free_port(address)}"}
            for node, address in ADDRESSES.items()
        ]
        path = self.folder / "fabric.yaml"
        path.write_text(yaml.safe_dump_all([fabric, peers]))
        return path
