"""The benchmark's ranks with real agents: all cases, right bytes, and an error that is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from agent.two_agents import ROOT, WAIT_S, TwoAgents, two_agents
from harness.process import Process

PROGRAM = ROOT / "examples/fabric_bench.py"
CASES = {"barrier", "round trip 64 B", "round trip 7168 B", "stream 256 KiB"}


def start(agents: TwoAgents, node: str, rank: int, world: int, *options: str) -> Process:
    place = (f"--socket={agents.socket(node)}", f"--rank={rank}", f"--world-size={world}")
    result = agents.folder / f"result-{rank}"
    command: list[str | Path] = [
        sys.executable,
        PROGRAM,
        *place,
        "--iterations=20",
        f"--result={result}",
        *options,
    ]
    return agents.processes.start(f"bench-{rank}", command)


def told(agents: TwoAgents, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((agents.folder / f"result-{rank}").read_text())
    return found


def test_three_ranks_measure_and_check_what_arrived() -> None:
    with two_agents() as agents:
        ranks = [start(agents, "aab"[rank], rank, 3) for rank in range(3)]
        for process in ranks:
            assert process.wait(WAIT_S) == 0, process.tail()
        found = [told(agents, rank) for rank in range(3)]
    assert [(one["rank"], one["node"], one["fabric"]) for one in found] == [
        (0, "a", "moe"),
        (1, "a", "moe"),
        (2, "b", "moe"),
    ]
    for one in found:
        cases = {result["case"] for result in one["results"]}
        # The last of an odd number has no partner.
        assert cases == (CASES if one["rank"] < 2 else {"barrier", "stream 256 KiB"})
        for result in one["results"]:
            assert result["verified"], result
            assert result["value"] > 0
            assert result.get("p99", 1) >= result.get("p50", 0)
    assert len(json.dumps(found[0])) < 4000, "a termination message holds 4 KiB"


def test_a_rank_whose_group_fails_says_so() -> None:
    with two_agents(joinTimeout="1s") as agents:
        alone = start(agents, "a", 0, 2)
        assert alone.wait(WAIT_S) == 1
        assert "rank 1 of 2 did not join" in told(agents, 0)["error"]
