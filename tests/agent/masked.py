"""Four agents that mask lost ranks, and eight ranks that exchange tokens; for this tier."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from agent.two_agents import ROOT, WAIT_S, TwoAgents, says
from harness.process import Process, Processes, wait_until

PROGRAM = ROOT / "examples/moe_rank.py"
WHERE = "aabbccdd"
SIZES = ("--tokens=16", "--experts=16", "--hidden=64", "--topk=4", "--timeout-s=60")


class FourAgents(TwoAgents):
    addresses: ClassVar[dict[str, str]] = {n: f"127.0.5.{i + 11}" for i, n in enumerate("abcd")}
    spec: ClassVar[dict[str, str]] = {"onRankLoss": "Mask"}

    def exchange(self, *options: str) -> list[Process]:
        """Two ranks on each node; they have joined when this returns."""
        ranks = []
        for rank, node in enumerate(WHERE):
            environment = {k: v for k, v in os.environ.items() if "RANK" not in k}
            place = (
                f"--rank={rank}",
                f"--world-size={len(WHERE)}",
                f"--socket={self.socket(node)}",
            )
            command: list[str | Path] = [sys.executable, PROGRAM]
            command += [*SIZES, *place, "--progress", *options]
            ranks.append(self.processes.start(f"rank-{rank}", command, env=environment))
        for process in ranks:
            wait_until(lambda p=process: says(p, "iteration"), 2 * WAIT_S, "the exchange", process)  # type: ignore[misc]
        return ranks


def result(process: Process) -> dict[str, Any]:
    """What the rank said at its end."""
    code = process.wait(WAIT_S)
    found: dict[str, Any] = json.loads(process.tail(1).splitlines()[-1])
    assert (code == 0) == found["ok"], process.tail()
    return found


@contextmanager
def four_agents(**barrier: str) -> Iterator[FourAgents]:
    with Processes("epfabric-mask-") as processes:
        yield FourAgents(processes, ("moe",), **barrier)
