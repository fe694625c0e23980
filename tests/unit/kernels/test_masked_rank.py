"""What a pod sees when another rank is masked: waits end, commands complete, the mask tells."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import epfabric
import pytest

from .core_agent import BOUND_S, GROUP, CoreAgent


def joined(agent: CoreAgent, rank: int) -> epfabric.Session:
    session = epfabric.connect(agent.path, rank, agent.world_size)
    session.register(4096)
    session.join()
    return session


def mask(agent: CoreAgent, rank: int) -> None:
    agent.core.mask_ranks(GROUP, [rank])
    agent.core.exclude_ranks(GROUP, [rank])


def test_waits_for_a_masked_rank_end_and_the_others_go_on(tmp_path: Path) -> None:
    with CoreAgent(tmp_path, 3) as agent, ThreadPoolExecutor(3) as pool:
        a, b, lost = pool.map(lambda rank: joined(agent, rank), range(3))
        lost.ring(0).signal(0, index=1, advance=4)
        lost.ring(0).flush()
        assert a.wait_signal(2, 0, 1, at_least=4)
        waits = pool.submit(a.wait_signal, 2, 0, 2, 1, BOUND_S)
        time.sleep(0.05)
        assert not waits.done()
        assert a.masked_ranks() == frozenset()
        mask(agent, 2)
        assert waits.result(BOUND_S) is False
        assert a.masked_ranks() == b.masked_ranks() == {2}
        assert a.wait_signal(2, 0, 1, at_least=4), "it came before"
        assert not a.wait_signal(2, 0, 1, at_least=5)
        ring = a.ring(1)
        for _ in range(3):
            ring.write(2, 0, 0, 64, signal=3, advance=1)
        ring.wait(ring.signal(2, 3))  # nothing is refused
        barriers = [pool.submit(session.barrier) for session in (a, b)]
        for barrier in barriers:
            barrier.result(BOUND_S)
        (counts,) = [c for c in agent.core.counters() if c["rank"] == 0]
        assert sum(ring["masked"] for ring in counts["rings"]) == 4
        with pytest.raises(epfabric.GroupFailed):
            lost.wait_signal(0, 0, 0, at_least=1)
        lost.abort()
        a.abort()
        b.abort()


def test_a_wait_that_runs_out_is_still_a_time_out(tmp_path: Path) -> None:
    with CoreAgent(tmp_path, 1) as agent, epfabric.connect(agent.path, 0, 1) as session:
        session.register(4096)
        session.join()
        begun = time.monotonic()
        with pytest.raises(epfabric.Timeout, match="to reach 1"):
            session.wait_signal(0, 0, 0, at_least=1, timeout_s=0.3)
        assert time.monotonic() - begun >= 0.3
        ring = session.ring(0)
        ring.signal(0, 0)
        grow = threading.Timer(0.1, ring.flush)
        grow.start()
        assert session.wait_signal(0, 0, 0, at_least=1, timeout_s=BOUND_S)
        grow.join(BOUND_S)
        assert not grow.is_alive()
