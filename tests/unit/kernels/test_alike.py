"""Ranks that make a buffer agree on how many ranks a node has, each by what it sees itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import epfabric
import pytest
from epfabric.cuda.through import alike

from .core_agent import GROUP, CoreAgent

WORDS = (5, 6)


def joined(agent: CoreAgent, rank: int) -> epfabric.Session:
    session = epfabric.connect(agent.path, rank, agent.world_size)
    session.register(4096)
    session.join()
    return session


def test_ranks_of_which_one_sees_another_number_all_know_it(tmp_path: Path) -> None:
    with CoreAgent(tmp_path, 3) as agent, ThreadPoolExecutor(3) as pool:
        sessions = list(pool.map(lambda rank: joined(agent, rank), range(3)))
        for word, values in zip(WORDS, ((3, 3, 3), (3, 1, 3)), strict=True):
            each = zip(sessions, values, strict=True)
            said = list(pool.map(lambda one, word=word: alike(one[0], word, one[1], 60), each))
            assert said == [len(set(values)) == 1] * 3
        for session in sessions:
            session.close()


def test_a_rank_that_is_lost_meanwhile_is_named(tmp_path: Path) -> None:
    with CoreAgent(tmp_path, 2) as agent, ThreadPoolExecutor(2) as pool:
        one, _ = pool.map(lambda rank: joined(agent, rank), range(2))
        waits = pool.submit(alike, one, WORDS[0], 1, 60)
        agent.core.mask_ranks(GROUP, [1])
        agent.core.exclude_ranks(GROUP, [1])
        with pytest.raises(epfabric.SessionError, match="rank 1 was lost"):
            waits.result(60)
