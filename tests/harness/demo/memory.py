"""Looks at what the processes of ranks and agents have mapped; used by both exchanges."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.demo.checks import Wrong

# What a rank may not have mapped: the agent's code, network libraries, and any node's folder.
FORBIDDEN = ("epfabric_agent", "libfabric", "libibverbs", "/var/lib/epfabric")


@dataclass(frozen=True)
class Mapped:
    """What one process has mapped: file names, and inodes of memory files."""

    who: str
    node: str
    files: frozenset[str]
    memory: frozenset[str]


def mapped(who: str, node: str, pid: int) -> Mapped:
    """OSError when the process is gone."""
    return parse(who, node, Path(f"/proc/{pid}/maps").read_text())


def parse(who: str, node: str, maps: str) -> Mapped:
    files, memory = set(), set()
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            if fields[5].startswith("/memfd:"):
                memory.add(fields[4])
            files.add(fields[5])
    return Mapped(who, node, frozenset(files), frozenset(memory))


def check_apart(ranks: list[Mapped], agents: list[Mapped]) -> int:
    """Ranks share memory with their own node's agent only; returns how many files are shared."""
    shared = 0
    for rank in ranks:
        for name in rank.files:
            if any(forbidden in name for forbidden in FORBIDDEN):
                raise Wrong(f"{rank.who} has {name} mapped")
        for agent in agents:
            common = rank.memory & agent.memory
            if common and agent.node != rank.node:
                raise Wrong(f"{rank.who} on {rank.node} maps memory of {agent.node}'s agent")
            shared += len(common)
        for other in ranks:
            if other is not rank and rank.memory & other.memory:
                raise Wrong(f"{rank.who} and {other.who} map the same memory")
    return shared
