"""Two real agents without Kubernetes: what their ranks did is in Prometheus when they end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import epfabric
import pytest
import yaml
from harness.demo import without_kubernetes as two_nodes
from harness.demo.checks import Work, check_results, payload_between
from harness.demo.queries import expression
from harness.process import Process, Processes, wait_until
from harness.prometheus import Prometheus

WORK = Work(world_size=4, tokens=16, iterations=2, barriers=50)
NAMESPACE = "local"
PHASES = ("arrive", "local", "network", "release", "total")


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as started:
        yield started


def report_to(manifest: Path, endpoint: str, interval: str) -> None:
    """Adds spec.telemetry to the manifest's fabric."""
    fabric, peers = yaml.safe_load_all(manifest.read_text())
    fabric["spec"]["telemetry"] = {"endpoint": endpoint, "interval": interval}
    manifest.write_text(yaml.safe_dump_all([fabric, peers]))


def answers(backend: Prometheus, promql: str, *labels: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(row["metric"].get(label, "") for label in labels): float(row["value"][1])
        for row in backend.query(promql)
    }


def start(processes: Processes) -> tuple[Prometheus, Path, dict[str, Process]]:
    """The backend, the folder of what the agents need, and the agents."""
    backend = Prometheus(processes)
    backend.start()
    folder = processes.folder / "manifest"
    folder.mkdir()
    two_nodes.issue_certificates(folder / "pki")
    manifest = two_nodes.write_manifest(folder, WORK)
    # So long an interval that only the export at the end carries anything.
    report_to(manifest, backend.otlp, "10m")
    agents = {
        node: two_nodes.start_agent(processes, manifest, folder, node) for node in two_nodes.NODES
    }
    for node, agent in agents.items():
        socket = two_nodes.socket_of(folder, node)
        wait_until(socket.exists, two_nodes.READY_SECONDS, f"the socket of {node}", agent)
    return backend, folder, agents


def test_the_last_counts_of_agents_that_end_are_all_in_prometheus(processes: Processes) -> None:
    backend, folder, agents = start(processes)
    results = two_nodes.run_ranks(processes, folder, WORK)
    check_results(results, WORK)
    assert backend.query("epfabric_sessions") == [], "nothing was sent before the end"
    two_nodes.stop_ranks_and_agents(agents)

    group = (NAMESPACE, two_nodes.GROUP)
    selector = f'k8s_namespace_name="{group[0]}", epfabric_group="{group[1]}"'
    phases = answers(
        backend,
        f"histogram_count(epfabric_barrier_duration_seconds{{{selector}}})",
        "instance",
        "epfabric_phase",
    )
    # The ranks of examples/moe_rank.py also meet around each iteration.
    (counted,) = set(phases.values())
    assert counted >= WORK.barriers
    assert phases.keys() == {(node, phase) for node in two_nodes.NODES for phase in PHASES}
    commands = answers(backend, expression("commands", *group), "epfabric_op")
    assert commands[("barrier",)] == counted * WORK.world_size
    sent = answers(
        backend,
        f"sum by (instance, epfabric_peer) (epfabric_bytes_total{{{selector}}})",
        "instance",
        "epfabric_peer",
    )
    expected = payload_between(results, WORK)
    assert {pair: sent[pair] for pair in expected} == expected
    assert sum(answers(backend, expression("refused", *group)).values()) == 0
    stragglers = answers(backend, "sum(epfabric_barrier_stragglers_total)")
    assert stragglers == {(): counted}


def test_a_group_whose_coordinators_agent_is_killed_is_counted_by_the_other(
    processes: Processes,
) -> None:
    backend, folder, agents = start(processes)
    sockets = [two_nodes.socket_of(folder, node) for node in agents]
    with ThreadPoolExecutor(len(sockets)) as pool:
        sessions = list(
            pool.map(lambda i: epfabric.connect(str(sockets[i]), i, len(sockets)), range(2))
        )
        list(pool.map(lambda session: session.join(), sessions))
    agents["a"].signal(signal.SIGKILL)
    agents["a"].wait(two_nodes.READY_SECONDS)
    with pytest.raises(epfabric.GroupFailed, match="coordinates the group, was lost"):
        sessions[1].barrier()
    for session in sessions:
        session.close()
    assert agents["b"].stop() == 0, agents["b"].tail()
    assert answers(
        backend, "epfabric_group_epochs_total", "instance", "epfabric_group", "epfabric_result"
    ) == {("b", two_nodes.GROUP, "orphaned"): 1}
