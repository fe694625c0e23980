"""Every query of the dashboard has a finite answer from a Prometheus that holds a live run.

Four agents, four ranks; one rank is lost, one pushes a command that is refused, one hello is
refused. The operator's queries are asked in tests/contract/test_operator_metrics.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import epfabric
import pytest
from agent.masked import FourAgents
from agent.two_agents import WAIT_S
from harness.process import Processes, wait_until
from harness.prometheus import Prometheus
from telemetry.dashboards import choices, unanswered

NODES = "abcd"
LOST = 3
SIZE_BYTES = 4096
ROUNDS = 10
PAUSE_S = 0.05


class ReportingAgents(FourAgents):
    addresses: ClassVar[dict[str, str]] = {n: f"127.0.7.{i + 11}" for i, n in enumerate(NODES)}
    spec: ClassVar[dict[str, Any]] = {"onRankLoss": "Mask"}


@pytest.fixture
def agents(prometheus: Prometheus) -> Iterator[FourAgents]:
    class Told(ReportingAgents):
        spec: ClassVar[dict[str, Any]] = {
            **ReportingAgents.spec,
            "telemetry": {"endpoint": prometheus.otlp, "interval": "1s"},
        }

    with Processes("epfabric-dashboards-") as processes:
        yield Told(processes, ("moe",))


def work(agents: FourAgents, rank: int, over: threading.Event, lost: threading.Event) -> None:
    """Writes to the next rank and meets the others, until rank 0 says that it is over."""
    with epfabric.connect(str(agents.socket(NODES[rank])), rank, 4, timeout_s=WAIT_S) as session:
        region = session.register(SIZE_BYTES)
        session.join()
        ring, at = session.ring(0), region.offset
        if rank == 1:
            with pytest.raises(epfabric.CommandRefused):
                ring.wait(ring.write(0, at, at + (1 << 30), 1024))  # outside every region
        for number in range(10**6):
            if rank == LOST and number == ROUNDS:
                session.abort()
                lost.set()
                return
            to = (rank + 1) % 4
            ring.write(to, at, at + 16, 1024, signal=0, advance=1)
            if rank == 0 and over.is_set():
                for other in range(4):
                    ring.signal(other, 1)
            session.barrier()
            if session.signal_value(0, 0, 1):
                return
            over.wait(PAUSE_S)


def test_every_query_of_the_agents_dashboard_has_a_finite_answer(
    agents: FourAgents, prometheus: Prometheus
) -> None:
    over, lost = threading.Event(), threading.Event()
    with ThreadPoolExecutor(4) as pool:
        ranks = [pool.submit(work, agents, rank, over, lost) for rank in range(4)]
        try:
            assert lost.wait(WAIT_S), [rank.exception(0) for rank in ranks if rank.done()]
            with pytest.raises(epfabric.SessionError) as refused:
                epfabric.connect(str(agents.socket("b")), 1, 5, timeout_s=WAIT_S)
            assert refused.value.code in ("world-size", "duplicate-rank")
            found: dict[str, str] = {}

            def answered() -> bool:
                found.clear()
                found.update(unanswered(prometheus, "agent"))
                return not found

            try:
                wait_until(answered, WAIT_S, "all answers")
            except Exception:
                pytest.fail(f"no finite answer: {found}")
        finally:
            over.set()
        for rank in ranks:
            rank.result(WAIT_S)
    assert choices(prometheus)["group"] >= {"moe"}
    assert choices(prometheus)["namespace"] >= {"local"}
    for agent in agents.agents.values():
        assert agent.stop() == 0, agent.tail()
