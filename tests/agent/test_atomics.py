"""Ranks of two real agents change the same words by ATOMICs: no change is lost or made twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from agent.two_agents import WAIT_S, two_agents

COUNTING = Path(__file__).with_name("counting_rank.py")
WORLD, TIMES = 4, 40


@pytest.mark.timeout(300)
def test_the_changes_of_a_word_by_ranks_of_two_nodes_are_one_chain() -> None:
    """Each change begins with what another one left, from 0 to what the owner reads at the end."""
    with two_agents() as pair:
        ranks = []
        for rank in range(WORLD):
            command: list[str | Path] = [sys.executable, COUNTING, pair.socket("aabb"[rank])]
            command += [str(rank), str(WORLD), str(TIMES)]
            ranks.append(pair.processes.start(f"counting-{rank}", command))
        for process in ranks:
            assert process.wait(2 * WAIT_S) == 0, process.tail()
        said = [json.loads(process.log.read_text()) for process in ranks]
    for owner in (0, WORLD - 1):
        for kind in ("add", "cas"):
            own = [one["changes"][f"{kind} {owner}"] for one in said]
            assert [len(changes) for changes in own] == [TIMES] * WORLD
            for changes in own:
                assert changes == sorted(changes), "a ring's ATOMICs took effect out of order"
            value = 0
            for old, new in sorted(change for changes in own for change in changes):
                assert old == value, f"{kind} on rank {owner}: {old} where the word held {value}"
                value = new
            assert said[owner][kind] == value == TIMES * sum(range(1, WORLD + 1))
