"""Eight ranks on four agent processes over tcp; then one process dies or hangs.

"-gated": with the protocol for networks that keep no order.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
LIMIT_S = 120.0


class Agents:
    """The four processes, spoken to by lines of JSON."""

    def __init__(self, what: str) -> None:
        program = str(Path(__file__).with_name("rank_process.py"))
        self.processes = [
            subprocess.Popen(
                [sys.executable, program, str(i), what],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(TESTS)},
            )
            for i in range(4)
        ]

    def hear(self, index: int) -> dict[str, Any]:
        stream: IO[str] | None = self.processes[index].stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], LIMIT_S)
        assert ready, f"agent {index} said nothing for {LIMIT_S} s"
        line = stream.readline()
        assert line, f"agent {index} ended"
        return dict(json.loads(line))

    def say(self, index: int, **message: object) -> None:
        stream = self.processes[index].stdin
        assert stream is not None
        stream.write(json.dumps(message) + "\n")
        stream.flush()

    def start(self) -> None:
        blobs = [blob for i in range(4) for blob in self.hear(i)["blobs"]]
        for i in range(4):
            self.say(i, blobs=blobs)
        for i in range(4):
            assert self.hear(i) == {"opened": True}
        for i in range(4):
            self.say(i, start=True)

    def close(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(30)
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()


@pytest.fixture
def agents(request: pytest.FixtureRequest) -> Iterator[Agents]:
    started = Agents(request.param)
    yield started
    started.close()


@pytest.mark.parametrize("agents", ["exchange", "exchange-gated"], indirect=True)
def test_eight_ranks_on_four_agents_exchange_add_swap_and_meet(agents: Agents) -> None:
    agents.start()
    told = [agents.hear(i) for i in range(4)]
    for one in told:
        assert (one["barriers"], one["events"]) == (1005, [])
    # Every change of the word begins where another one ended: none is lost, none happened twice.
    changes = dict(change for one in told for change in one["changes"])
    assert len(changes) == sum(len(one["changes"]) for one in told) >= 8 * 60
    value = 0
    for _ in range(len(changes)):
        value = changes[value]
    assert value == told[2]["held"][1], "rank 5"
    for i in range(4):
        agents.say(i, end=True)
        assert agents.processes[i].wait(30) == 0


@pytest.mark.parametrize("agents", ["kill", "stall", "stall-gated"], indirect=True)
def test_a_dead_or_hanging_agent_fails_the_epoch_on_the_others(
    agents: Agents, request: pytest.FixtureRequest
) -> None:
    agents.start()
    for i in range(4):
        assert agents.hear(i) == {"done": True}
    hang = "stall" in request.node.name
    agents.processes[1].send_signal(signal.SIGSTOP if hang else signal.SIGKILL)
    for i in (0, 2, 3):
        agents.say(i, lost=True)
    for i in (0, 2, 3):
        told = agents.hear(i)
        assert told["kind"] == "failed"
        assert told["rank"] == 2
        assert "lost rank 2" in told["detail"]
        assert ("acknowledged nothing for 2000 ms" in told["detail"]) == hang
        assert told["aborted"] == [True, True]
        agents.say(i, end=True)
        assert agents.processes[i].wait(30) == 0
