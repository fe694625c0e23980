"""A fabric's life on a real API server: who may write what, and deletion at any moment."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from epfabric_crds import names
from harness.cluster import Cluster
from harness.demo import as_processes, checks, ranks, refusals, site
from harness.demo.checks import Work
from harness.demo.show import Show
from harness.demo.site import FABRIC, Site
from harness.prometheus import Prometheus
from kubernetes import client

BOUND_S = 120.0
SMALL = Work(tokens=8, iterations=1, barriers=10, hold_s=300)
QUICK = replace(SMALL, hold_s=0)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def running(cluster: Cluster, prometheus: Prometheus) -> Iterator[Site]:
    """The chart installed, nodes that run pods, no fabric."""
    with as_processes.furnished(cluster, prometheus, Show(0)) as furnished:
        yield furnished


@contextmanager
def fabric(running: Site) -> Iterator[None]:
    """A Ready fabric; at the end it is deleted, unless it is gone, and nothing of it remains."""
    site.apply_fabric(running)
    try:
        yield
    finally:
        running.kubectl("delete", f"epf/{FABRIC}", "--ignore-not-found", "--timeout=60s")
        site.await_empty(lambda: site.remains(running, {}), "what is left of the fabric")


@contextmanager
def job(running: Site) -> Iterator[None]:
    """Eight ranks that hold their group after a short exchange."""
    ranks.create(running, SMALL)
    try:
        yield
    finally:
        ranks.delete(running)


def await_true(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.25)


def as_agent(running: Site, pod: str) -> client.CustomObjectsApi:
    """The API as the agent's own account sees it, with a token bound to its pod."""
    token = running.kubectl(
        *("create", "token", names.AGENT_ACCOUNT, "-n", names.NODES_NAMESPACE),
        *("--bound-object-kind=Pod", f"--bound-object-name={pod}"),
    ).strip()
    configuration = client.Configuration()
    configuration.host = running.cluster.url
    configuration.ssl_ca_cert = str(running.cluster.control_plane.certificate)
    configuration.api_key = {"authorization": f"Bearer {token}"}
    return client.CustomObjectsApi(client.ApiClient(configuration))


def test_explain_documents_the_fields(running: Site) -> None:
    text = running.kubectl("explain", "epfabric.spec.proxies")
    assert "perGPU" in text
    assert "<no description>" not in running.kubectl("explain", "epfabric.spec")
    assert "<no description>" not in text


def test_an_agent_cannot_write_the_object_of_another_node(running: Site) -> None:
    with fabric(running):
        pod = running.pods(names.NODES_NAMESPACE, f"{names.FABRIC_LABEL}={FABRIC}")[0]
        api = as_agent(running, pod["metadata"]["name"])
        mine = pod["spec"]["nodeName"]
        other = next(name for name in ("node-0", "node-1") if name != mine)

        def patch(node: str) -> None:
            api.patch_cluster_custom_object_status(
                *(names.GROUP, names.VERSION, names.NODES, node),
                {"status": {"observedGeneration": 1}},
            )

        patch(mine)
        with pytest.raises(client.ApiException) as refusal:
            patch(other)
        assert refusal.value.status in (403, 422)
        assert mine in json.loads(refusal.value.body or "{}")["message"]


def test_a_killed_agent_comes_back_and_the_fabric_is_ready_again(running: Site) -> None:
    with fabric(running):
        before = running.agents()
        node = "node-1"
        for pid in [pid for pid, where in before.items() if where == node]:
            os.kill(pid, signal.SIGKILL)
        await_true(
            lambda: any(n == node and p not in before for p, n in running.agents().items()),
            "the killed agent was started again",
        )
        running.kubectl("wait", "--for=condition=Ready", f"epf/{FABRIC}", "--timeout=120s")
        running.kubectl("wait", "--for=condition=Ready", f"epfn/{node}", "--timeout=120s")


def test_deletion_while_ranks_run_leaves_nothing(running: Site) -> None:
    with fabric(running), job(running):
        await_true(lambda: phase_of_group(running) == "Ready", "the group is Ready")
        agents = running.agents()
        running.kubectl("delete", f"epf/{FABRIC}", "--timeout=60s")
        site.await_empty(lambda: site.remains(running, agents), "what is left of the fabric")
    assert running.pods(ranks.NAMESPACE, "") == []


def test_deletion_while_the_operator_is_away_does_not_hang(running: Site) -> None:
    with fabric(running):
        scale(running, 0)
        try:
            running.kubectl("delete", f"epf/{FABRIC}", "--timeout=60s")
        finally:
            scale(running, 1)
        site.await_empty(lambda: site.remains(running, {}), "what is left of the fabric")


def test_a_pod_that_names_a_deleted_fabric_is_refused(running: Site) -> None:
    with fabric(running):
        pass
    objects = (site.EXAMPLES / "moe-job.yaml").read_text()
    running.kubectl("apply", "-f", "-", stdin=objects.partition("---")[0])
    try:
        done = running.cluster.try_kubectl(
            "create", "-f", "-", stdin=json.dumps(refusals.template())
        )
        assert done.returncode != 0
        assert f"no EPFabric {FABRIC}" in done.stderr
    finally:
        running.kubectl("delete", "namespace", ranks.NAMESPACE, "--timeout=60s")


def phase_of_group(running: Site) -> str:
    groups = running.get("epg", "-n", ranks.NAMESPACE)["items"]
    return str(groups[0].get("status", {}).get("phase", "")) if groups else ""


def scale(running: Site, replicas: int) -> None:
    running.kubectl(
        *("scale", "deployment/epfabric-operator", "-n", names.NAMESPACE),
        f"--replicas={replicas}",
    )
    if replicas:
        running.kubectl(
            *("rollout", "status", "deployment/epfabric-operator", "-n", names.NAMESPACE),
            "--timeout=120s",
        )
    else:
        selector = "app.kubernetes.io/name=epfabric-operator"
        await_true(
            lambda: not running.pods(names.NAMESPACE, selector), "the operator's pods are gone"
        )


def exchange(running: Site) -> None:
    """Ranks of a job move tokens through the agents and check them."""
    ranks.create(running, QUICK)
    try:
        await_true(lambda: ranks.finished(running), "the job is complete")
        found = []
        for pod in running.pods(ranks.NAMESPACE, ranks.SELECTOR):
            name = pod["metadata"]["name"]
            found.append(checks.result_of(running.logs(pod), name))
        checks.check_results(sorted(found, key=lambda result: int(result["rank"])), QUICK)
    finally:
        ranks.delete(running)


def test_an_exchange_over_tcp_needs_no_capability_of_the_agents(running: Site) -> None:
    with fabric(running):
        agents = running.agents()
        assert len(agents) == as_processes.NODES
        for pid in agents:
            lines = dict(
                line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            )
            assert lines["Uid"].split() == ["0"] * 4
            for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                assert int(lines[kind], 16) == 0, kind
            assert int(lines["NoNewPrivs"]) == 1
        exchange(running)
        assert running.agents().keys() == agents.keys(), "no agent was started again"
