"""The P99 that Prometheus answers is that of the barriers as they were; a straggler shows."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest
from epfabric_agent._native import Core
from epfabric_agent.telemetry import runtime
from epfabric_agent.telemetry.config import configure
from epfabric_agent.telemetry.core_counts import barrier_sample
from epfabric_agent.telemetry.histogram import fit, from_core
from epfabric_agent.telemetry.runtime import Telemetry
from epfabric_agent.telemetry.snapshot import Snapshot
from harness.prometheus import Prometheus
from native.pod import Group, barrier, until

if TYPE_CHECKING:
    from epfabric_agent._native import BarrierTimes

SEED = random.SystemRandom().randrange(2**32)
NODES = [[0, 1], [2], [3]]
GROUP = 1
BARRIERS = 400
LATE_S = 0.05
Q = 0.99
STAMPS = {
    "arrive": ("first_ns", "entered_ns"),
    "local": ("entered_ns", "posted_ns"),
    "network": ("posted_ns", "network_ns"),
    "release": ("network_ns", "left_ns"),
    "total": ("first_ns", "left_ns"),
}


@pytest.fixture
def group() -> Iterator[Group]:
    with Group(NODES, provider="tcp;ofi_rxm") as made:
        yield made


def meet(group: Group, straggler: int, late: set[int]) -> None:
    for number in range(BARRIERS):
        others = [pod for pod in group.pods if pod.rank != straggler]
        tickets = [(pod, pod.push(0, barrier())) for pod in others]
        if number in late:
            time.sleep(LATE_S)
        last = group.pods[straggler]
        tickets.append((last, last.push(0, barrier())))
        for pod, ticket in tickets:
            pod.wait(0, ticket)


def settle(group: Group, met: int) -> None:
    """Times are written down a moment after the ranks were let go."""
    for node in group.nodes:
        core = node.core
        until(
            lambda c=core: c.take_barriers(GROUP, met - 1, 1, kept=False)["position"] == met,
            "times",
        )


def raw(core: Core) -> list[BarrierTimes]:
    taken = core.take_barriers(GROUP, 0, 1 << 20, kept=False)
    assert taken["overwritten"] == 0
    return taken["barriers"]


def seconds(barriers: list[BarrierTimes], phase: str) -> np.ndarray:
    start, end = STAMPS[phase]
    return np.array([max(one[end] - one[start], 0) for one in barriers]) * 1e-9  # type: ignore[literal-required]


def report(node: int, core: Core, backend: Prometheus) -> Telemetry:
    def source() -> Snapshot:
        stats = core.barrier_stats(GROUP)
        return Snapshot(
            barriers=(barrier_sample(stats, namespace="true", group="g", handle=GROUP),)
        )

    config = configure(backend.otlp, node=f"n{node}", fabric="moe", environ={}, interval_s=3600)
    return runtime.start(config, source)


def compare(group: Group, backend: Prometheus) -> dict[str, float]:
    """Every node's and phase's P99 as Prometheus says it beside the exact one; the totals."""
    answers = {
        (row["metric"]["instance"], row["metric"]["epfabric_phase"]): float(row["value"][1])
        for row in backend.query(
            f"histogram_quantile({Q}, "
            'epfabric_barrier_duration_seconds{k8s_namespace_name="true"})'
        )
    }
    totals = {}
    for node, member in enumerate(group.nodes):
        barriers = raw(member.core)
        phases = member.core.barrier_stats(GROUP)["phases"]
        for phase in STAMPS:
            exact = float(np.quantile(seconds(barriers, phase), Q, method="inverted_cdf"))
            answer = answers[f"n{node}", phase]
            assert phases[phase]["count"] == len(barriers)
            # The exported scale is coarser where the values spread widely. Prometheus interpolates
            # the rank, so a value at a bucket's edge may be one beside.
            scale = fit(from_core(phases[phase])).scale
            print(f"n{node} {phase}: exact {exact:.3e} s, Prometheus {answer:.3e} s, {scale=}")
            assert abs(math.log2(answer / exact)) <= 2 * 2.0**-scale, (node, phase)
        totals[f"n{node}"] = answers[f"n{node}", "total"]
    return totals


def test_the_p99_of_prometheus_is_that_of_the_stamps_and_shows_a_straggler(
    group: Group, prometheus: Prometheus
) -> None:
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    straggler = draw.randrange(len(group.pods))
    with ExitStack() as ends:
        agents = [report(node, one.core, prometheus) for node, one in enumerate(group.nodes)]
        for agent in agents:
            ends.callback(agent.shutdown)
        meet(group, straggler, set())
        settle(group, BARRIERS)
        for agent in agents:
            agent.flush()
        compare(group, prometheus)
        late = set(draw.sample(range(BARRIERS), BARRIERS // 20))
        meet(group, straggler, late)
        settle(group, 2 * BARRIERS)
        for agent in agents:
            agent.flush()
        moved = compare(group, prometheus)
    where = {rank: f"n{node}" for node, ranks in enumerate(NODES) for rank in ranks}
    for node in moved:
        if node != where[straggler] or len(NODES[int(node[1:])]) > 1:  # others waited there
            assert moved[node] >= LATE_S / 2
    led = [one for one in raw(group.nodes[0].core) if one["number"] - BARRIERS in late]
    assert {one["last_rank"] for one in led} == {straggler}
