"""Agents of two builds in one group: they serve it together, or its ranks are told why not."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from agent.two_agents import WAIT_S, TwoAgents
from harness.process import Process, Processes, wait_until

OTHER = Path(__file__).with_name("other_build.py")
REFUSED = 3


class TwoBuilds(TwoAgents):
    """Node b's agent is of another build."""

    speaks = ("1", "2")

    def start(self, node: str, name: str = "") -> Process:
        if node == "a":
            return super().start(node, name)
        options = [f"--manifest={self.manifest}", f"--node={node}", f"--pki={self.folder / 'pki'}"]
        return self.processes.start(
            name or f"agent-{node}",
            [sys.executable, OTHER, *self.speaks, *options, f"--state-dir={self.folder / node}"],
            env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")},
        )


class TwoThatDoNotFit(TwoBuilds):
    speaks = ("2", "3")


def test_agents_of_two_builds_serve_one_group() -> None:
    with Processes("epfabric-builds-") as processes:
        for rank in TwoBuilds(processes).ranks():
            assert rank.wait(WAIT_S) == 0, rank.tail()


def test_a_rank_is_told_when_agents_do_not_fit_and_served_once_they_do() -> None:
    with Processes("epfabric-builds-") as processes:
        pair = TwoThatDoNotFit(processes)
        first, second = pair.rank("a", 0, 2), pair.rank("b", 1, 2)
        assert second.wait(WAIT_S) == REFUSED, second.tail()
        for word in ("failed abi", "node b speaks versions 2 to 3", "node a version 1", "updated"):
            assert word in second.tail()
        assert not first.ended.is_set(), first.tail()
        pair.speaks = ("1", "3")
        assert pair.agents["b"].stop() == 0
        pair.agents["b"] = pair.start("b", "agent-b-again")
        wait_until(lambda: pair.listens("b"), WAIT_S, "agent b", pair.agents["b"])
        for rank in (first, pair.rank("b", 1, 2, name="rank-1-again")):
            assert rank.wait(WAIT_S) == 0, rank.tail()
