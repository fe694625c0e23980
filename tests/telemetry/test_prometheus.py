"""What a real Prometheus answers about what the agents sent it."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from epfabric_agent.telemetry import runtime
from epfabric_agent.telemetry.config import configure
from epfabric_agent.telemetry.readings import METRICS
from epfabric_agent.telemetry.runtime import Telemetry
from epfabric_agent.telemetry.snapshot import PHASES, Snapshot, Source
from harness import prometheus
from harness.demo.queries import QUERIES, expression
from harness.prometheus import Prometheus
from telemetry.recorded import SCALE, counted, draw, snapshot

SEED = random.SystemRandom().randrange(2**32)
MEDIANS = dict(zip(PHASES, (2e-6, 5e-6, 4e-5, 3e-6, 6e-5), strict=True))
StartAgent = Callable[[str, Source], Telemetry]


@pytest.fixture
def backend() -> Iterator[Prometheus]:
    with prometheus.running() as running:
        yield running


@pytest.fixture
def start_agent(backend: Prometheus) -> Iterator[StartAgent]:
    """Starts reporters that send only when flushed; all end with the test."""
    with ExitStack() as ends:

        def start(node: str, source: Source) -> Telemetry:
            config = configure(backend.otlp, node=node, fabric="moe", environ={}, interval_s=3600)
            telemetry = runtime.start(config, source)
            ends.callback(telemetry.shutdown)
            return telemetry

        yield start


def soon(backend: Prometheus, promql: str) -> list[Any]:
    """The answer, when there is one: a subquery looks at whole seconds only."""
    for _ in range(100):
        if rows := backend.query(promql):
            return rows
        time.sleep(0.1)
    raise AssertionError(f"no answer to {promql} in 10 s")


def asked(backend: Prometheus, promql: str, label: str) -> dict[str, float]:
    """The answer's values by one label."""
    return {row["metric"].get(label, ""): float(row["value"][1]) for row in backend.query(promql)}


def test_quantiles_by_phase_over_all_agents_lie_in_the_bucket_of_the_exact_value(
    backend: Prometheus, start_agent: StartAgent
) -> None:
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    draws = {f"n{n}": draw(rng, MEDIANS, 3000) for n in range(3)}
    for rank, (node, drawn) in enumerate(draws.items()):
        start_agent(node, lambda d=drawn, r=rank: snapshot(d, r, {}, 1)).flush()
    for name, q in (("barrier_p50", 0.5), ("barrier_p99", 0.99)):
        answers = asked(backend, expression(name, "ns", "g"), "epfabric_phase")
        assert answers.keys() == set(PHASES)
        for phase, answer in answers.items():
            every = np.concatenate([drawn[phase] for drawn in draws.values()])
            exact = float(np.quantile(every, q, method="inverted_cdf"))
            # Prometheus interpolates the rank, so a value at a bucket's edge may be one beside.
            assert abs(math.log2(answer / exact)) <= 2 * 2.0**-SCALE
    counts = asked(backend, expression("barrier_count", "ns", "g"), "instance")
    assert counts == dict.fromkeys(draws, 3000.0)


def test_every_query_of_the_demo_has_finite_answers_that_are_the_counts(
    backend: Prometheus, start_agent: StartAgent
) -> None:
    drawn = draw(np.random.default_rng(1), MEDIANS, 10)
    sent = {"n0": 7168, "n1": 2 * 7168}
    commands = iter((100, 400, 400))
    telemetry = start_agent("n0", lambda: snapshot(drawn, 3, sent, next(commands)))
    telemetry.flush()
    telemetry.flush()
    for name, query in QUERIES.items():
        rows = soon(backend, expression(name, "ns", "g"))
        for row in rows:
            assert math.isfinite(float(row["value"][1])), name
            assert row["metric"].keys() == set(query.row.split()), name

    def answer(name: str, label: str) -> dict[str, float]:
        return asked(backend, expression(name, "ns", "g"), label)

    assert answer("bytes", "epfabric_peer") == {"n0": 7168, "n1": 14336}
    assert answer("commands", "epfabric_op") == {"write": 400, "barrier": 1}
    assert answer("refused", "epfabric_reason") == {"rank-left": 2}
    assert answer("slowest_rank", "epfabric_rank") == {"3": 8}
    assert answer("transport", "epfabric_provider") == {"tcp;ofi_rxm": 1}
    assert answer("commands_per_second", "instance")["n0"] > 0


def test_every_metric_arrives_with_its_group_and_its_agent(
    backend: Prometheus, start_agent: StartAgent
) -> None:
    drawn = draw(np.random.default_rng(1), MEDIANS, 10)
    start_agent("n0", lambda: snapshot(drawn, 0, {"n1": 1}, 1)).flush()
    suffix = {"counter": "_total", "gauge": "", "histogram": "_seconds"}
    for info in METRICS:
        name = info.name.replace(".", "_") + suffix[info.kind]
        rows = backend.query(name)
        assert rows, f"{name} did not arrive"
        for row in rows:
            labels = row["metric"]
            assert (labels["k8s_namespace_name"], labels["epfabric_group"]) == ("ns", "g")
            assert (labels["job"], labels["instance"]) == ("epfabric-agent", "n0")
            assert (labels["k8s_node_name"], labels["epfabric_fabric"]) == ("n0", "moe")
    assert asked(backend, "epfabric_sessions", "instance") == {"n0": 1}


def test_an_agents_restart_is_seen_as_a_reset_and_no_count_is_lost(
    backend: Prometheus, start_agent: StartAgent
) -> None:
    drawn = draw(np.random.default_rng(1), MEDIANS, 10)
    for counts in ((40, 100), (20, 60)):
        commands = iter((*counts, counts[-1]))
        telemetry = start_agent("n0", lambda c=commands: snapshot(drawn, 0, {}, next(c)))
        telemetry.flush()
        telemetry.flush()
        telemetry.shutdown()
    (row,) = backend.query('epfabric_commands_total{epfabric_op="write"}[5m]')
    values = [float(value) for _, value in row["values"]]
    steps = itertools.pairwise(values)
    assert sum(after - before for before, after in steps if after > before) + values[0] == 160
    (resets,) = backend.query('resets(epfabric_commands_total{epfabric_op="write"}[5m])')
    assert resets["value"][1] == "1"
    histograms = backend.query(
        'histogram_count(increase(epfabric_barrier_duration_seconds{epfabric_phase="total"}[5m]))'
    )
    assert float(histograms[0]["value"][1]) >= 20


def test_what_is_counted_while_the_collector_is_away_arrives_when_it_is_back(
    backend: Prometheus, start_agent: StartAgent
) -> None:
    drawn = draw(np.random.default_rng(1), MEDIANS, 10)
    commands = iter((10, 200, 3000, 3000))
    telemetry = start_agent("n0", lambda: snapshot(drawn, 0, {}, next(commands)))
    telemetry.flush()
    backend.stop()
    telemetry.flush()
    backend.start(port=int(backend.url.rpartition(":")[2]))
    telemetry.flush()
    (row,) = backend.query('epfabric_commands_total{epfabric_op="write"}[5m]')
    assert [float(value) for _, value in row["values"]] == [0, 10, 3000]


def test_a_coarser_histogram_after_a_wide_outlier_keeps_all_counts(
    backend: Prometheus, start_agent: StartAgent
) -> None:
    values = np.full(500, 1e-5)
    wide = np.concatenate([values, [30.0]])
    states: list[Snapshot] = [snapshot({"total": both}, 0, {}, 1) for both in (wide, wide, values)]
    telemetry = start_agent("n0", lambda: states.pop() if len(states) > 1 else states[0])
    telemetry.flush()
    telemetry.flush()
    counts = asked(backend, expression("barrier_count", "ns", "g"), "instance")
    assert counts == {"n0": 501}
    p50 = asked(backend, expression("barrier_p50", "ns", "g"), "epfabric_phase")["total"]
    assert len(counted(wide).counts) > 160, "the outlier forces a coarser scale"
    assert 1e-5 / 2 < p50 < 2e-5
