"""Agents with a real API server and operator: certified, in status, with a group in its EPGroup."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent.abuse import seat
from contract.real_agents import READY_S, RUN_S, Site, listens, publish, running_site
from contract.stand import NODES_NAMESPACE, Stand
from epfabric_agent.kube import settings_file
from epfabric_crds import names
from harness.process import Process, wait_until


@pytest.fixture(scope="module")
def site(stand: Stand, operator: Process) -> Iterator[Site]:
    with running_site(stand, f"{stand.prefix}-agents", 2) as made:
        yield made


@pytest.fixture(scope="module")
def later() -> Iterator[contextlib.ExitStack]:
    """What is started in place of something that a test has killed."""
    with contextlib.ExitStack() as stack:
        yield stack


def test_agents_become_ready_with_status_and_lease(site: Site) -> None:
    stand, processes = site.stand, site.agents.values()
    ready = lambda: stand.condition("epfabric", site.fabric, "Ready").get("status") == "True"  # noqa: E731
    stand.eventually(ready, "the fabric to be Ready", *processes)
    for index, node in enumerate(site.agents):
        status = stand.find("epfabricnode", node)["status"]
        assert status["endpoint"].startswith(f"127.0.4.{index + 1}:")
        assert status["transport"]["type"] == "libfabric"
        assert "tcp is allowed" in status["transport"]["reason"]
        assert status["topology"]["cpus"]
        assert status["sessions"] == 0
        lease = stand.find("lease", names.agent_lease(node), "-n", NODES_NAMESPACE)
        assert lease["spec"]["holderIdentity"].startswith(node)
        (owner,) = lease["metadata"]["ownerReferences"]
        assert owner["uid"] == stand.find("epfabricnode", node)["metadata"]["uid"]
        kept = settings_file.kept(site.states[node], node, site.fabric)
        assert kept is not None, "settings for a start without API server"


def test_a_tenant_over_its_limit_is_told_and_so_is_who_describes_the_pod(site: Site) -> None:
    stand, node = site.stand, next(iter(site.agents))
    first, second = (publish(site, node, f"small-{i}", 0, "small") for i in range(2))
    for place in (first, second):
        wait_until(place.exists, READY_S, "the pod's socket", site.agents[node])
    with seat.open_socket(first) as taken:
        assert seat.ask(taken, seat.hello())["ok"] is True
        with seat.open_socket(second) as sock:
            code, text = seat.refused(seat.ask(sock, seat.hello()))
        assert code == "tenant"
        assert text.startswith("the tenant small has 1 sessions on this node and may have 1")

        def told() -> list[dict[str, object]]:
            path = f"/apis/events.k8s.io/v1/namespaces/{site.space}/events"
            return [
                event
                for event in stand.api.get(path)["items"]
                if event["reason"] == "TenantLimit" and event["regarding"]["name"] == "small-1-0"
            ]

        stand.eventually(lambda: bool(told()), "an Event about the pod", site.agents[node])
        (event,) = told()
        assert (event["note"], event["reportingInstance"]) == (text, node)
    with seat.open_socket(second) as sock:
        stand.eventually(
            lambda: seat.ask(sock, seat.hello()).get("ok") is True,
            "the place of the session that ended",
            site.agents[node],
        )


def test_a_group_runs_over_two_agents_and_its_epgroup_tells(site: Site) -> None:
    results = site.run("training", 4)
    assert {result["epoch"] for result in results} == {1}
    group = completed(site, "training", 1)
    assert group["spec"] == {"fabric": site.fabric, "worldSize": 4}
    status = group["status"]
    assert [part["ranks"] for part in status["nodes"]] == ["0-1", "2-3"]
    assert status["coordinator"]["node"] == next(iter(site.agents))
    assert status["barriers"]["count"] >= 50
    assert 0 < status["barriers"]["p50Seconds"] <= status["barriers"]["p99Seconds"]


def test_a_group_that_comes_again_has_the_next_epoch(site: Site) -> None:
    site.run("again", 2)
    completed(site, "again", 1)
    results = site.run("again", 2)
    assert {result["epoch"] for result in results} == {2}
    completed(site, "again", 2)


def test_a_killed_agent_serves_its_pods_again_at_the_same_place(site: Site) -> None:
    site.run("restarted", 2)
    completed(site, "restarted", 1)
    node = next(iter(site.agents))
    place = publish(site, node, "restarted", 0)
    directory = place.parent.stat().st_ino
    site.agents[node].signal(signal.SIGKILL)
    site.agents[node].wait(READY_S)
    site.start(node)

    wait_until(lambda: listens(place), READY_S, "the pod's socket", site.agents[node])
    assert place.parent.stat().st_ino == directory
    assert {result["epoch"] for result in site.run("restarted", 2)} == {2}


def test_a_group_ends_in_order_while_the_api_server_is_away(site: Site) -> None:
    """The ranks leave while it is stopped; the EPGroup is written when it is back."""
    server = api_server(site)
    running = site.ranks("away", 2, "--pause-s=60", "--iterations=1")
    ready = lambda: group_of(site, "away").get("status", {}).get("phase") == "Ready"  # noqa: E731
    try:
        site.stand.eventually(ready, "the group to be Ready", *site.agents.values())
        os.kill(server, signal.SIGSTOP)
        for process in running:
            process.signal(signal.SIGUSR1)
        for process in running:
            assert process.wait(RUN_S) == 0, process.tail()
    finally:
        os.kill(server, signal.SIGCONT)
    completed(site, "away", 1)


def test_a_group_ends_with_right_numbers_though_operator_and_api_server_are_killed(
    site: Site, operator: Process, later: contextlib.ExitStack
) -> None:
    """At a random moment of its exchange."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    plane = site.stand.cluster.control_plane
    running = site.ranks("orphaned", 4, "--iterations=400", "--barriers=500")
    ready = lambda: group_of(site, "orphaned").get("status", {}).get("phase") == "Ready"  # noqa: E731
    site.stand.eventually(ready, "the group to be Ready", *site.agents.values())
    time.sleep(random.Random(seed).uniform(0.0, 1.0))
    operator.signal(signal.SIGKILL)
    plane.kill_api_server()
    try:
        assert not any(process.ended.is_set() for process in running), "the exchange is too short"
        for process in running:
            assert process.wait(RUN_S) == 0, process.tail()
            result = json.loads(process.log.read_text().strip().splitlines()[-1])
            assert result["ok"]
            assert result["bytes_verified"] > 0
    finally:
        plane.start_api_server()
        later.enter_context(site.stand.operator())
    completed(site, "orphaned", 1)
    assert not any(agent.ended.is_set() for agent in site.agents.values())


def test_an_agent_waits_for_the_one_before_it_on_its_node(site: Site) -> None:
    """As when a node goes to another fabric: the agents' pods overlap."""
    node, processes = next(iter(site.agents)), site.stand.cluster.processes
    before = site.agents[node]
    after = processes.start(f"{node}-after", site.commands[node])
    wait_until(lambda: "another agent" in after.tail(100), READY_S, "to wait", after)
    assert f"process {before.pid}" in after.tail(100)
    assert "certified as" not in after.tail(100)
    before.stop()
    wait_until(lambda: "certified as" in after.tail(100), READY_S, "to go on", after)
    site.agents[node] = after


def test_a_removed_nodes_lease_goes_with_it(site: Site) -> None:
    stand, node = site.stand, list(site.agents)[-1]
    site.agents[node].stop()
    assert stand.find("lease", names.agent_lease(node), "-n", NODES_NAMESPACE)
    stand.delete("node", node)

    def gone() -> bool:
        left = stand.find("lease", names.agent_lease(node), "-n", NODES_NAMESPACE)
        return left is None and stand.find("epfabricnode", node) is None

    stand.eventually(gone, "the EPFabricNode and the Lease to go")


def api_server(site: Site) -> int:
    """Its process."""
    port = f"--secure-port={site.stand.cluster.url.rpartition(':')[2]}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if port in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    assert len(found) == 1
    return found[0]


def completed(site: Site, name: str, epoch: int) -> dict[str, Any]:
    def done() -> bool:
        status = group_of(site, name).get("status", {})
        ended = status.get("phase") == "Completed" and status.get("epoch") == epoch
        return ended and "barriers" in status

    site.stand.eventually(done, f"group {name} to complete epoch {epoch}", *site.agents.values())
    return group_of(site, name)


def group_of(site: Site, name: str) -> dict[str, Any]:
    found = site.stand.find("epgroup", name, "-n", site.space) or {}
    return found if isinstance(found, dict) else {}
