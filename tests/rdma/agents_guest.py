"""Runs in the VM: agents over two rails, each with a rank; prints what they said as JSON.

Two whose links use one NIC at a time, while rails go; and two whose links use one on each rail.

The agents are forked from here and the ranks are threads: in there an interpreter takes half a
minute to import an agent. Judged by test_agents.py outside.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import epfabric
import numpy as np
from rdma.guest_agent import WAIT_S, Agent, until

ROUNDS, RINGS, SIZE = 10, 2, 4096
ADDRESSES = {"a": "127.0.7.1", "b": "127.0.7.2"}
STRIPING = {"c": "127.0.7.3", "d": "127.0.7.4"}
SELECTIONS = {"c": "roundRobin", "d": "leastInflight"}
STRIPED_SIZE = 128 << 10  # two stripes
ENDS = {"a": "a", "b": "b", "c": "a", "d": "b"}  # of both rails, by agent
LINK_UP = (
    "ip link set vb0 up; ip route replace 10.9.0.1 dev vb0 src 10.9.0.2 table 102; "
    "ip route replace 10.9.0.2 dev va0 src 10.9.0.1 table 101"
)
ADDRESS_BACK = (
    "ip addr add 10.9.1.1/24 dev va1; ip route replace 10.9.1.2 dev va1 src 10.9.1.1 table 103"
)
STARVED = "gave no sign of life"
TRIES = 4


def spec(node: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "transport": {"type": "auto"},
        "nics": {"selector": {"names": [f"v{ENDS[node]}{rail}" for rail in (0, 1)]}},
        "proxies": {"perGPU": 2, "idle": "adaptive"},
    }
    if node in SELECTIONS:
        found["highThroughput"] = {"nicsPerGPU": 2, "qpSelection": SELECTIONS[node]}
    return found


def sent_bytes(node: str) -> list[int]:
    """Through each of the agent's NICs."""
    path = "/sys/class/net/v{}{}/statistics/tx_bytes"
    return [int(Path(path.format(ENDS[node], rail)).read_text()) for rail in (0, 1)]


class Turns:
    """How many rounds the ranks of a group take: so many, or until it is enough."""

    def __init__(self, last: int | None) -> None:
        self.last, self.made = last, 0
        self.enough = threading.Event()

    def go_on(self, rank: int, turn: int) -> bool:
        """Rank 0 says it before its barrier, so that both know of it after."""
        if rank == 0:
            self.made = turn - 1
            if self.last is None and self.enough.is_set():
                self.last = turn
        return self.last is None or turn <= self.last

    def beyond(self, made: int) -> bool:
        return self.made > made


class Rank(threading.Thread):
    """Joins; exchanges and leaves."""

    def __init__(self, agents: list[Agent], rank: int, turns: Turns, size: int) -> None:
        """`size`: in bytes, of each write."""
        super().__init__(daemon=True)
        self.path, self.rank, self.turns = str(agents[rank].socket), rank, turns
        self.size = size
        self.joined = threading.Event()
        self.outcome = "nothing"

    def run(self) -> None:
        try:
            with epfabric.connect(self.path, self.rank, 2, timeout_s=WAIT_S) as session:
                region = session.register(2 * RINGS * self.size)
                session.join()
                self.joined.set()
                self.outcome = exchange(session, region, self.size, self.turns)
        except (epfabric.SessionError, AssertionError) as error:
            self.outcome = f"{type(error).__name__}: {error}"
        self.joined.set()


def exchange(session: epfabric.Session, region: epfabric.Region, size: int, turns: Turns) -> str:
    """Rounds of writes by every ring, seen by their signals; then DRAIN and a barrier."""
    other, far = 1 - session.rank, RINGS * size
    turn = 1
    while turns.go_on(session.rank, turn):
        for index in range(RINGS):
            ring, at = session.ring(index), index * size
            region.array[at : at + size] = pattern(size, session.rank, index, turn)
            start = region.offset + at
            ring.write(other, start, start + far, size, signal=0, advance=1)
            ring.wait(ring.drain(), WAIT_S)
        for index in range(RINGS):
            session.wait_signal(other, index, 0, turn, WAIT_S)
            at = far + index * size
            assert np.array_equal(region.array[at : at + size], pattern(size, other, index, turn))
        session.barrier(WAIT_S)
        turn += 1
    return "verified"


def pattern(size: int, rank: int, ring: int, turn: int) -> Any:
    return ((np.arange(size) * 7 + rank * 31 + ring * 57 + turn * 13) % 251).astype(np.uint8)


def group(agents: list[Agent], turns: Turns, size: int = SIZE) -> list[Rank]:
    ranks = [Rank(agents, rank, turns, size) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    return ranks


def ended(ranks: list[Rank]) -> list[str]:
    for rank in ranks:
        rank.join(2 * WAIT_S)
    return [rank.outcome for rank in ranks]


def shell(commands: str) -> None:
    for command in commands.split("; "):
        subprocess.run(command.split(), check=True)


def until_or_ended(ranks: list[Rank], check: Callable[[], bool], what: str) -> None:
    until(lambda: check() or not all(rank.is_alive() for rank in ranks), what)


def under_load(agents: list[Agent], command: str, undo: str, seen: Callable[[], bool]) -> list[str]:
    """What a group says whose rail is taken away while it exchanges, and stays away.

    Where it does not fail, it goes on for some rounds after this is `seen`.

    Once more, a few times, where an agent stood still for so long that its rank took it for dead:
    emulated on a busy machine it does.
    """
    rails = [agent.choices()[-1].split("; ")[1] for agent in agents]
    for left in range(TRIES, 0, -1):
        turns = Turns(None)
        ranks = group(agents, turns)
        for rank in ranks:
            rank.joined.wait(WAIT_S)
        until_or_ended(ranks, partial(turns.beyond, turns.made + 2), "two rounds")
        shell(command)
        until_or_ended(ranks, seen, "what comes of it")
        until_or_ended(ranks, partial(turns.beyond, turns.made + 2), "two rounds more")
        turns.enough.set()
        said = ended(ranks)
        if left == 1 or not any(STARVED in one for one in said):
            break
        shell(undo)
        for agent, before in zip(agents, rails, strict=True):
            until(lambda a=agent, b=before: b in a.choices()[-1], "the rail to be back")  # type: ignore[misc]
    return said


def exchanged(agents: list[Agent], size: int = SIZE) -> list[str]:
    """What a group says; again while an agent still has the core that the lost rail belongs to."""
    deadline = time.monotonic() + WAIT_S
    while True:
        said = ended(group(agents, Turns(ROUNDS), size))
        late = any("cannot open the session" in one or STARVED in one for one in said)
        if not late or time.monotonic() > deadline:
            return said
        time.sleep(1)


def play(agents: list[Agent], steps: dict[str, Any]) -> None:
    for agent in agents:
        until(agent.listens, f"agent {agent.node} to listen")
    steps["first"] = exchanged(agents)
    steps["link down"] = under_load(
        agents, "ip link set vb0 down", LINK_UP, lambda: all(a.moves() for a in agents)
    )
    for agent in agents:
        until(lambda a=agent: f"over r{a.node}1" in a.choices()[-1], "a choice")  # type: ignore[misc]
    steps["one rail"] = exchanged(agents)
    steps["moves"] = [move for agent in agents for move in agent.moves()]
    steps["address gone"] = under_load(
        agents, "ip addr del 10.9.1.1/24 dev va1", ADDRESS_BACK, lambda: False
    )
    until(lambda: "over ra1 (fe80::" in agents[0].choices()[-1], "agent a to choose the other GID")


def striped(agents: list[Agent], steps: dict[str, Any]) -> None:
    for agent in agents:
        until(agent.listens, f"agent {agent.node} to listen")
    before = {agent.node: sent_bytes(agent.node) for agent in agents}
    steps["striped"] = exchanged(agents, STRIPED_SIZE)
    steps["written"] = [STRIPED_SIZE, ROUNDS * RINGS * STRIPED_SIZE]  # first, in all
    steps["sent"] = {
        node: [now - then for now, then in zip(sent_bytes(node), were, strict=True)]
        for node, were in before.items()
    }


def played(
    folder: Path,
    addresses: dict[str, str],
    play: Callable[[list[Agent], dict[str, Any]], None],
    steps: dict[str, Any],
) -> None:
    """Starts an agent at each address, lets them play, ends them."""
    agents = [Agent(node, folder, spec(node), addresses) for node in addresses]
    for agent in agents:
        agent.start()
    try:
        play(agents, steps)
    except TimeoutError as error:
        steps["failed"] += str(error)
    steps["codes"] += [agent.stop() for agent in agents]
    steps["reasons"] += [reason for agent in agents for reason in agent.reasons()]
    steps["choices"] |= {agent.node: agent.choices() for agent in agents}
    steps["logs"] |= {agent.node: agent.says()[-6000:] for agent in agents}


def main() -> None:
    steps: dict[str, Any] = {"failed": "", "imports": time.process_time()}
    steps |= {"codes": [], "reasons": [], "choices": {}, "logs": {}}
    with tempfile.TemporaryDirectory(prefix="rails-") as name:
        played(Path(name), STRIPING, striped, steps)
        played(Path(name), ADDRESSES, play, steps)
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
