"""The agent itself, without Kubernetes, in a namespace: sets NICs, is killed, restores."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from agent.two_agents import AGENT, ROOT, WAIT_S, free_port
from epfabric_agent.csi import records
from epfabric_agent.nic.journal import Journal
from harness.netns import Namespace, namespace
from harness.process import Process, Processes, wait_until

NODE = "192.0.2.10"
TRIES = 10


@dataclass
class Program:
    ns: Namespace
    processes: Processes
    started: int = 0

    @property
    def folder(self) -> Path:
        return self.processes.folder

    @property
    def journal(self) -> Journal:
        return Journal(self.folder / "state", records.boot_id())

    def manifest(self, mtu: int) -> None:
        documents = list(yaml.safe_load_all((ROOT / "examples/two-agents/fabric.yaml").read_text()))
        documents[0]["spec"]["nics"] = {
            "mode": "Configure",
            "mtu": mtu,
            "selector": {"names": ["data0"]},
        }
        documents[1]["peers"] = [{"node": "a", "endpoint": f"{NODE}:{free_port('127.0.0.1')}"}]
        (self.folder / "fabric.yaml").write_text(yaml.safe_dump_all(documents))

    def start(self) -> Process:
        self.started += 1
        return self.processes.start(
            f"agent-{self.started}",
            [
                *self.ns.enter,
                *(AGENT, f"--manifest={self.folder / 'fabric.yaml'}"),
                *("--node=a", f"--pki={self.folder / 'pki'}"),
                f"--state-dir={self.folder / 'state'}",
            ],
            env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")},
        )

    def command(self, *words: str | Path) -> tuple[int, str]:
        self.started += 1
        done = self.processes.start(f"command-{self.started}", [*self.ns.enter, AGENT, *words])
        return done.wait(WAIT_S), done.tail()

    def restore(self) -> tuple[int, str]:
        return self.command("nics", "restore", f"--state-dir={self.folder / 'state'}")


@pytest.fixture
def program() -> Iterator[Program]:
    with namespace("epf-agt") as ns, Processes("epfabric-nics-") as processes:
        ns.veth("up0")
        ns.ip("addr", "add", f"{NODE}/24", "dev", "up0")
        ns.veth("data0")
        made = Program(ns, processes)
        (made.folder / "state").mkdir()
        pki = made.folder / "pki"
        assert made.command("pki", "init", pki)[0] == 0
        issue = ("--node=a", "--fabric=moe", f"--address={NODE}")
        assert made.command("pki", "issue", pki, *issue)[0] == 0
        yield made


def test_killed_in_the_middle_of_a_change_it_ends_rolled_back(program: Program) -> None:
    """The peer's link goes with the change, so that it stays unconfirmed until the agent dies."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    pause_s = random.Random(seed).uniform(0.0, 0.5)
    program.manifest(9000)
    for _ in range(TRIES):
        agent = program.start()
        wait_until(lambda: program.ns.mtu("data0") == 9000, WAIT_S, "the change", agent)
        program.ns.ip("link", "set", "data0p", "down")
        time.sleep(pause_s)
        agent.signal(signal.SIGKILL)
        agent.wait(WAIT_S)
        if (pending := program.journal.memory.pending) is not None:
            break
        # The machine was slow: the change was confirmed before the link went.
        program.ns.ip("link", "set", "data0p", "up")
        assert program.restore()[0] == 0
    assert pending is not None, f"confirmed each time, {TRIES} times"
    assert (pending.setting, pending.old, pending.new) == ("mtu", "1500", "9000")
    assert program.ns.mtu("data0") == 9000
    code, said = program.restore()
    assert (code, program.ns.mtu("data0")) == (0, 1500), said
    assert "was cut off before it was confirmed; mtu was rolled back to 1500" in said
    assert program.journal.memory.pending is None


def test_killed_it_is_set_again_and_the_command_restores(program: Program) -> None:
    program.manifest(9000)
    agent = program.start()
    confirmed = {("data0", "mtu"): "1500"}
    wait_until(lambda: program.journal.memory.originals == confirmed, WAIT_S, "it", agent)
    code, said = program.restore()
    assert code == 2
    assert "one agent per node" in said
    agent.signal(signal.SIGKILL)
    agent.wait(WAIT_S)
    program.ns.ip("link", "set", "data0", "mtu", "1300")
    second = program.start()
    wait_until(lambda: program.ns.mtu("data0") == 9000, WAIT_S, "it again", second)
    wait_until(lambda: "attach at" in second.tail(), WAIT_S, "serving", second)
    assert second.stop() == 0
    assert program.ns.mtu("data0") == 9000  # an agent that ends has not left its fabric
    code, said = program.restore()
    assert (code, program.ns.mtu("data0")) == (0, 1500), said
    assert "as they were before" in said
    assert program.restore()[0] == 0
