"""Runs in the VM: an agent in a cpuset that changes while two ranks meet; prints where it ran.

Where the agent's proxies are pinned and where its sessions' memory lies, by /proc, after each
change; and what its log says. Judged by test_cpus.py outside.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import epfabric
from rdma.guest_agent import WAIT_S, Agent, until

MOUNT = Path("/sys/fs/cgroup")
GROUP = MOUNT / "agent"
SIZE = 4096
SPEC = {"transport": {"type": "loopback"}, "proxies": {"perGPU": 2, "idle": "adaptive"}}


def cpuset(cpus: str) -> None:
    (GROUP / "cpuset.cpus").write_text(cpus)


def pinned(pid: int) -> dict[int, list[int]]:
    """The CPUs of each proxy's thread, in the order in which they were started."""
    found = {}
    for task in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # others come and go
            if (task / "comm").read_text().startswith("epf-proxy"):
                found[int(task.name)] = sorted(os.sched_getaffinity(int(task.name)))
    return found


def memory(pid: int) -> dict[str, list[int]]:
    """The NUMA nodes with pages of each mapped segment, by the mapping's address."""
    found = {}
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if "memfd:epfabric-" in line:
            found[line.split()[0]] = sorted(map(int, re.findall(r" N(\d+)=", line)))
    return found


class Rank(threading.Thread):
    """Opens its session; then writes to the other one and meets it, until it is told to leave."""

    def __init__(self, agent: Agent, rank: int, world: int) -> None:
        super().__init__(daemon=True)
        before, known = pinned(agent.pid), memory(agent.pid)
        self.session = epfabric.connect(str(agent.socket), rank, world, timeout_s=WAIT_S)
        self.agent = agent
        self.tasks = [task for task in pinned(agent.pid) if task not in before]
        mapped = {at: nodes for at, nodes in memory(agent.pid).items() if at not in known}
        self.nodes = sorted({node for nodes in mapped.values() for node in nodes})
        self.segments = len(mapped)
        self.region = self.session.register(2 * SIZE)
        self.turns, self.last = 0, 1 << 30
        self.outcome = "nothing"

    def cpus(self) -> list[list[int]]:
        now = pinned(self.agent.pid)
        if gone := [task for task in self.tasks if task not in now]:
            raise TimeoutError(f"proxies {gone} ended while it ran; its outcome: {self.outcome}")
        return [now[task] for task in self.tasks]

    def where(self) -> dict[str, Any]:
        return {"cpus": self.cpus(), "memory": self.nodes, "segments": self.segments}

    def run(self) -> None:
        try:
            self.session.join()
            ring, other = self.session.ring(0), 1 - self.session.rank
            while self.turns < self.last:
                turn = self.turns + 1
                self.region.array[:SIZE] = turn % 251
                offset = self.region.offset
                ring.write(other, offset, offset + SIZE, SIZE, signal=0, advance=1)
                ring.wait(ring.drain(), WAIT_S)
                self.session.wait_signal(other, 0, 0, turn, WAIT_S)
                assert (self.region.array[SIZE:] == turn % 251).all(), f"turn {turn}"
                self.session.barrier(WAIT_S)
                self.turns = turn
                time.sleep(0.05)
            self.outcome = "verified"
        except (epfabric.SessionError, AssertionError) as error:
            self.outcome = f"{type(error).__name__}: {error}"
        finally:
            self.session.close()


def changed(agent: Agent, ranks: list[Rank], cpus: str, wanted: list[list[list[int]]]) -> Any:
    """Where the ranks' proxies are once they are as wanted, or when that took too long."""
    turns = ranks[0].turns
    cpuset(cpus)
    try:
        until(lambda: [rank.cpus() for rank in ranks] == wanted, "the proxies to move")
        until(lambda: ranks[0].turns > turns + 1, "the ranks to go on")
    except TimeoutError as error:
        return [str(error), [rank.cpus() for rank in ranks], agent.verdicts()[-1]]
    return [[rank.cpus() for rank in ranks], agent.verdicts()[-1]]


def play(agent: Agent, steps: dict[str, Any]) -> None:
    until(agent.listens, "the agent to listen")
    ranks = [Rank(agent, rank, 2) for rank in (0, 1)]
    steps["opened"] = [rank.where() for rank in ranks]
    steps["opened says"] = agent.verdicts()[-1]
    for rank in ranks:
        rank.start()
    until(lambda: ranks[0].turns > 1, "the ranks to meet")
    steps["node gone"] = changed(agent, ranks, "0-1,4-7", [[[6], [7]], [[4], [5]]])
    steps["too few"] = changed(agent, ranks, "4-6", [[[6], [4, 5, 6]], [[4], [5]]])
    steps["back"] = changed(agent, ranks, "2-7", [[[2], [3]], [[4], [5]]])
    for rank in ranks:
        rank.last = ranks[0].turns + 3
    for rank in ranks:
        rank.join(WAIT_S)
    steps["outcomes"] = [rank.outcome for rank in ranks]
    until(lambda: not pinned(agent.pid), "the sessions to end")
    cpuset("4")  # and at once a session: the agent has not looked since
    alone = Rank(agent, 0, 1)
    steps["one CPU"] = [alone.where(), agent.verdicts()[-1]]
    alone.session.close()


def main() -> None:
    subprocess.run(["mount", "-t", "cgroup2", "cgroup2", str(MOUNT)], check=True)
    (MOUNT / "cgroup.subtree_control").write_text("+cpuset")
    GROUP.mkdir()
    cpuset("2-7")
    steps: dict[str, Any] = {"failed": ""}
    with tempfile.TemporaryDirectory(prefix="cpus-") as name:
        agent = Agent("a", Path(name), SPEC, {"a": "127.0.7.1"})
        agent.start(GROUP)
        try:
            play(agent, steps)
        except TimeoutError as error:
            steps["failed"] = str(error)
        steps["code"] = agent.stop()
        steps["log"] = agent.says()[-6000:]
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
