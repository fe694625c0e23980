"""Two agents with two groups: one to abuse, and one of bystanders that must never notice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.two_agents import WAIT_S, TwoAgents, two_agents
from harness.process import Process, wait_until

BYSTANDER = Path(__file__).with_name("bystander.py")


class Bystanders:
    """Four ranks, two on each node, that exchange and meet all the time."""

    def __init__(self, pair: TwoAgents) -> None:
        self.folder = pair.folder / "bystanders"
        self.folder.mkdir()
        self.ranks: list[Process] = []
        for rank in range(4):
            path = pair.socket("aabb"[rank], "other")
            command: list[str | Path] = [sys.executable, BYSTANDER, path, str(rank), "4"]
            command.append(self.folder)
            self.ranks.append(pair.processes.start(f"bystander-{rank}", command))
        self.go_on()

    @property
    def rounds(self) -> int:
        """Of the slowest."""
        files = [self.folder / f"rounds-{rank}" for rank in range(4)]
        return min(int(file.read_text() or 0) if file.exists() else 0 for file in files)

    def go_on(self) -> None:
        """Returns when they have done two rounds that began after the call."""
        before = self.rounds
        wait_until(lambda: self.rounds > before + 2, WAIT_S, "the bystanders", *self.ranks)

    def stop(self) -> None:
        (self.folder / "stop").touch()
        for rank in self.ranks:
            assert rank.wait(WAIT_S) == 0, rank.tail()


@pytest.fixture(scope="package")
def pair() -> Iterator[TwoAgents]:
    with two_agents(groups=("moe", "other"), timeout="8s", joinTimeout="20s") as made:
        yield made
        for agent in made.agents.values():
            assert agent.stop(20.0) == 0, agent.tail()


@pytest.fixture(scope="package")
def bystanders(pair: TwoAgents) -> Iterator[Bystanders]:
    ranks = Bystanders(pair)
    yield ranks
    ranks.stop()


@pytest.fixture(autouse=True)
def nobody_notices(bystanders: Bystanders) -> Iterator[None]:
    yield
    bystanders.go_on()
