"""An agent that is forked in the VM: an interpreter there takes half a minute to import one."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from epfabric_agent import main as agent_main
from epfabric_agent.manifest import mode  # imported here once, not in each agent
from epfabric_agent.pki import authority
from epfabric_agent.pki.identity import NodeIdentity

WAIT_S = 120.0
IMPORTED = (agent_main, mode)
EXAMPLE = Path(__file__).resolve().parents[2] / "examples/two-agents/fabric.yaml"


class Agent:
    """A process of its own, with a manifest, a folder and a log."""

    def __init__(
        self, node: str, folder: Path, spec: dict[str, Any], addresses: dict[str, str]
    ) -> None:
        """`spec`: of the EPFabric, beside the example's. `addresses`: of all agents, by node."""
        self.node = node
        self.log = folder / f"{node}.log"
        self.socket = folder / node / "sockets/moe/agent.sock"
        fabric, peers = yaml.safe_load_all(EXAMPLE.read_text())
        fabric["spec"] |= spec
        peers["peers"] = [{"node": n, "endpoint": f"{a}:7471"} for n, a in addresses.items()]
        manifest = folder / f"{node}.yaml"
        manifest.write_text(yaml.safe_dump_all([fabric, peers]))
        self.arguments = [
            *(f"--manifest={manifest}", f"--node={node}"),
            *(f"--pki={folder / 'pki'}", f"--state-dir={folder / node}"),
        ]
        if not (folder / "pki").exists():
            authority.make_authority(folder / "pki", days=1)
        identity = NodeIdentity(node, "moe", addresses[node])
        authority.issue(folder / "pki", identity, 1, folder / "pki")
        self.pid = 0

    def start(self, cgroup: Path | None = None) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            if cgroup is not None:
                (cgroup / "cgroup.procs").write_text("0")
            self._live()

    def _live(self) -> None:
        out = os.open(self.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        code = 99
        try:
            code = agent_main.main(self.arguments)
        finally:
            sys.stderr.flush()
            os._exit(code)

    def says(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def choices(self) -> list[str]:
        return re.findall(r"transport ((?:verbs|none): .*)", self.says())

    def reasons(self) -> list[str]:
        """Why its groups' epochs failed."""
        return re.findall(r"epoch \d+ failed: (.*)", self.says())

    def moves(self) -> list[str]:
        """Of links that go over another NIC."""
        return re.findall(r"the core says: moved: (.*)", self.says())

    def verdicts(self) -> list[str]:
        """What it says of its proxies' CPUs."""
        return re.findall(r"CPUConstrained=.*", self.says())

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        code: list[int] = []

        def ended() -> bool:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code.append(os.waitstatus_to_exitcode(status))
            return bool(pid)

        until(ended, f"agent {self.node} to end")
        return code[0]


def until(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {WAIT_S:.0f} s: {what}")
        time.sleep(0.05)
