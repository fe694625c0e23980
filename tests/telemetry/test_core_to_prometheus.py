"""The real core counts, the agent's telemetry reports, and Prometheus knows: exactly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from epfabric_agent._native import Core, RemoteRank, Session
from epfabric_agent.telemetry import runtime
from epfabric_agent.telemetry.config import configure
from epfabric_agent.telemetry.core_counts import barrier_sample, session_sample
from epfabric_agent.telemetry.runtime import Telemetry
from epfabric_agent.telemetry.snapshot import PHASES, Snapshot
from epfabric_host import _producer
from harness import prometheus
from harness.demo.queries import expression
from harness.prometheus import Prometheus

GROUP = 7
RINGS, DEPTH, SIGNALS, WORLD = 2, 64, 4, 2
BARRIERS = 200
WRITE_BYTES = 64
LIMIT_NS = 60 * 10**9
REGION_BYTES = 65536


@dataclass(frozen=True)
class Rank:
    """One rank with the agent's core of its node."""

    rank: int
    core: Core
    session: Session


@pytest.fixture
def backend() -> Iterator[Prometheus]:
    with prometheus.running() as running:
        yield running


@contextmanager
def epoch(nodes: list[list[int]], provider: str) -> Iterator[list[Rank]]:
    """Two ranks in an open epoch, on one core a node."""
    with ExitStack() as ends:
        ranks = []
        for members in nodes:
            core = Core(address="127.0.0.1", provider=provider)
            ends.callback(core.close)
            for rank in members:
                session = core.open_session(
                    group=GROUP,
                    rank=rank,
                    world=WORLD,
                    rings=RINGS,
                    depth=DEPTH,
                    signals=SIGNALS,
                    cpus=[-1],
                )
                register(session)
                ranks.append(Rank(rank, core, session))
        blobs = {one.rank: one.session.describe() for one in ranks}
        with ThreadPoolExecutor(len(nodes)) as pool:
            opened = [
                pool.submit(open_epoch, node, nodes, ranks, blobs) for node in range(len(nodes))
            ]
            for one in opened:
                one.result(60)
        for core in {id(one.core): one.core for one in ranks}.values():
            core.start_epoch(GROUP)
        yield ranks


def register(session: Session) -> None:
    fd = os.memfd_create("region", os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, bytes(REGION_BYTES))
        session.register_memfd(fd, REGION_BYTES)
    finally:
        os.close(fd)


def open_epoch(
    node: int, nodes: list[list[int]], ranks: list[Rank], blobs: dict[int, bytes]
) -> None:
    local = [one for one in ranks if one.rank in nodes[node]]
    remote = [
        RemoteRank(rank, index, blobs[rank])
        for index, members in enumerate(nodes)
        if index != node
        for rank in members
    ]
    local[0].core.open_epoch(
        GROUP, 1, [one.session for one in local], remote, 0, nodes, LIMIT_NS // 10**6
    )


def meet(rank: Rank) -> None:
    """What a pod's process does: write to the other rank, drain, barrier; 200 times."""
    session = rank.session
    fds = session.share()
    segments = _producer.Segments(*fds, RINGS, DEPTH, SIGNALS, WORLD)
    for fd in fds:
        os.close(fd)
    ring = _producer.Ring(segments, 0, 1)
    for _ in range(BARRIERS):
        units = WRITE_BYTES // 16
        pushed = [
            ring.write(1 - rank.rank, 0, 0, units, 0, 1, LIMIT_NS),
            ring.drain(LIMIT_NS),
            ring.barrier(LIMIT_NS),
        ]
        assert [status for status, _ in pushed] == [_producer.DONE] * 3
        assert ring.wait(pushed[-1][1], LIMIT_NS) == _producer.DONE
    segments.detach()


def source_of(node: int, ranks: list[Rank]) -> Snapshot:
    core = ranks[0].core
    names = ["n0", "n1"]
    sessions = tuple(
        session_sample(
            one.session.counters(), namespace="ns", group="g", handle=one.rank, nodes=names
        )
        for one in ranks
    )
    barrier = barrier_sample(core.barrier_stats(GROUP), namespace="ns", group="g", handle=GROUP)
    return Snapshot("libfabric", "tcp;ofi_rxm", sessions, (barrier,))


def by(backend: Prometheus, promql: str, *labels: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(row["metric"].get(label, "") for label in labels): float(row["value"][1])
        for row in backend.query(promql)
    }


@pytest.mark.parametrize(
    ("nodes", "provider", "transport"),
    [([[0, 1]], "", "loopback"), ([[0], [1]], "tcp;ofi_rxm", "libfabric")],
    ids=["one-node", "two-nodes"],
)
def test_what_the_core_counted_is_what_prometheus_answers(
    backend: Prometheus, nodes: list[list[int]], provider: str, transport: str
) -> None:
    with epoch(nodes, provider) as ranks, ExitStack() as ends:
        agents: list[Telemetry] = []
        for node, members in enumerate(nodes):
            here = [one for one in ranks if one.rank in members]
            config = configure(
                backend.otlp, node=f"n{node}", fabric="moe", environ={}, interval_s=3600
            )
            agent = runtime.start(config, lambda n=node, h=here: source_of(n, h))
            ends.callback(agent.shutdown)
            agents.append(agent)
        with ThreadPoolExecutor(WORLD) as pool:
            for done in [pool.submit(meet, rank) for rank in ranks]:
                done.result(120)
        for agent in agents:
            agent.flush()
        counts = by(
            backend,
            "histogram_count(epfabric_barrier_duration_seconds)",
            "instance",
            "epfabric_phase",
        )
        assert counts == {
            (f"n{node}", phase): BARRIERS for node in range(len(nodes)) for phase in PHASES
        }
        commands = by(backend, expression("commands", "ns", "g"), "epfabric_op")
        assert commands == {(op,): WORLD * BARRIERS for op in ("write", "drain", "barrier")} | {
            (op,): 0 for op in ("signal", "add", "cas")
        }
        sent = by(
            backend,
            expression("bytes", "ns", "g"),
            "instance",
            "epfabric_peer",
            "epfabric_transport",
        )
        where = {rank: f"n{node}" for node, members in enumerate(nodes) for rank in members}
        wanted: dict[tuple[str, ...], float] = {}
        for rank in range(WORLD):
            route = (where[rank], where[1 - rank], transport)
            wanted[route] = wanted.get(route, 0) + BARRIERS * WRITE_BYTES
        assert sent == wanted
        last = by(backend, "sum(epfabric_barrier_stragglers_total)")
        assert last == {(): BARRIERS}
        quantiles = by(backend, expression("barrier_p99", "ns", "g"), "epfabric_phase")
        assert all(0 <= value < LIMIT_NS / 1e9 for value in quantiles.values())
        assert quantiles[("total",)] >= max(quantiles.values()) * 2 ** (-2 / 32)
