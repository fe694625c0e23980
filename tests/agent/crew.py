"""Drives ranks that outlive their sessions (agent.crew_rank); for tests of what is lost."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from agent.two_agents import ROOT, WAIT_S, TwoAgents
from harness.process import Process

PROGRAM = Path(__file__).with_name("crew_rank.py")
Event = dict[str, Any]


class Member:
    """One process; `seat` is the node and rank of its session, for people."""

    def __init__(self, process: Process, link: socket.socket) -> None:
        self.process, self.seat = process, ""
        self._link = link

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, **command: Any) -> None:
        self._link.send(json.dumps(command).encode())

    def hear(self, *events: str) -> Event:
        """The next thing that happens; AssertionError for another one than these, or for none."""
        ready, _, _ = select.select([self._link], [], [], WAIT_S)
        assert ready, (
            f"{self.seat}: nothing in {WAIT_S:g} s; wanted {events}\n{self.process.tail()}"
        )
        packet = self._link.recv(65536)
        assert packet, f"{self.seat}: the process ended; wanted {events}\n{self.process.tail()}"
        event: Event = json.loads(packet)
        assert event["event"] in events, f"{self.seat}: {event} instead of {events}"
        return event

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        self._link.close()


class Crew:
    """`members` in order of hiring; whoever was killed is replaced by hire()."""

    def __init__(self, agents: TwoAgents, count: int) -> None:
        self._agents = agents
        self._path = str(agents.folder / "crew.sock")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.settimeout(WAIT_S)
        self._listener.bind(self._path)
        self._listener.listen(64)
        self._hired = 0
        self.members = self.hire(count)

    def hire(self, count: int) -> list[Member]:
        """New processes, started side by side."""
        python = os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
        processes = {}
        for _ in range(count):
            name = f"member-{self._hired}"
            self._hired += 1
            processes[name] = self._agents.processes.start(
                name,
                [sys.executable, PROGRAM, self._path, name],
                env={**os.environ, "PYTHONPATH": python},
            )
        members = {}
        for _ in range(count):
            link, _ = self._listener.accept()
            name = link.recv(100).decode()
            members[name] = Member(processes[name], link)
        return [members[name] for name in processes]

    def replace(self, gone: Member) -> None:
        self.members[self.members.index(gone)] = self.hire(1)[0]

    def attach(self, members: list[Member], nodes: str, group: str, work: str, seed: int) -> None:
        """Sends each member into the group, as rank of its place; `nodes` is one letter a rank."""
        for rank, (member, node) in enumerate(zip(members, nodes, strict=True)):
            member.seat = f"rank {rank} of {group} on node {node}"
            path = str(self._agents.socket(node, group))
            world = len(nodes)
            member.tell(path=path, rank=rank, world=world, work=work, seed=seed)
        epochs = {member.hear("joined")["epoch"] for member in members}
        assert len(epochs) == 1, epochs

    @staticmethod
    def finish(members: list[Member]) -> None:
        """Lets a group of blocks end in order, with right numbers on all."""
        for member in members:
            member.tell(finish=True)
        for member in members:
            assert member.hear("done")["rounds"] > 0

    def close(self) -> None:
        self._listener.close()
