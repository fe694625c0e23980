"""What an agent may change of an EPGroup: its own, for its fabric, and little of the metadata."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart.accounts import A, Accounts, B, agent_pod, bound
from chart.conftest import FABRIC, OTHER, TEAM
from chart.objects import NODES, As, Object, Refused
from epfabric_agent.csi.records import Owner
from epfabric_agent.groups.state import GroupState
from epfabric_agent.kube.api import connect
from epfabric_agent.kube.group_report import GroupReporter
from epfabric_agent.peers.client import Agent
from epfabric_agent.pods import Pod
from harness.process import wait_until

GROUP = "chart-group"
WAIT_S = 30.0


def group(**spec: Any) -> Object:
    return {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPGroup",
        "metadata": {"name": GROUP, "namespace": TEAM},
        "spec": {"fabric": FABRIC, "worldSize": 8, **spec},
    }


def state(of: str, phase: str, epoch: int) -> Object:
    made = group()
    del made["spec"]
    coordinator = {"node": of, "endpoint": "10.0.0.1:7470"}
    return {**made, "status": {"phase": phase, "epoch": epoch, "coordinator": coordinator}}


def write(who: As, status: Object) -> None:
    who.apply(status, "epfabric-agent", subresource="status")


def test_a_group_is_written_by_its_coordinator_only(installed: As, accounts: Accounts) -> None:
    a, b = accounts.agent_a, accounts.agent_b
    a.apply(group(), "epfabric-agent")
    with pytest.raises(Refused, match="only as its coordinator"):
        write(a, state(B, "Forming", 1))
    write(a, state(A, "Forming", 1))
    write(a, state(A, "Ready", 1))
    with pytest.raises(Refused, match="only as its coordinator"):
        write(b, state(A, "Failed", 1))
    with pytest.raises(Refused, match=f"coordinated by the node {A}.*greater epoch"):
        write(b, state(B, "Ready", 1))
    b.apply(group(), "epfabric-agent")
    with pytest.raises(Refused, match="greater epoch"):
        b.apply(group(worldSize=4), "epfabric-agent")
    write(b, state(B, "Forming", 2))
    b.apply(group(worldSize=4), "epfabric-agent")
    write(b, state(B, "Completed", 2))
    write(a, state(A, "Forming", 2))
    with pytest.raises(Refused, match="forbidden"):
        a.delete("epgroups", GROUP, TEAM)
    installed.delete("epgroups", GROUP, TEAM)


def test_an_agent_writes_groups_of_its_fabric_where_the_fabric_is_used(accounts: Accounts) -> None:
    elsewhere = group()
    elsewhere["metadata"]["namespace"] = OTHER
    says = f"EPFabric {FABRIC} may not write in the namespace {OTHER}"
    with pytest.raises(Refused, match=says):
        accounts.agent_a.apply(elsewhere, "epfabric-agent")
    for fabric in ("chart", "chart-moe-x", "chart-mo"):
        with pytest.raises(Refused, match=f"is none of the EPFabric {fabric}"):
            accounts.agent_a.apply(group(fabric=fabric), "epfabric-agent")


@pytest.mark.parametrize("fabric", ["m", "m-xxxxx", "m" * 63])
def test_an_agents_fabric_is_that_of_its_daemonset(
    installed: As, accounts: Accounts, fabric: str
) -> None:
    """Whatever the length of names, and with a pool or none."""
    for tail in ("-", ".pool-", ".pool-xxxxx-"):
        name = f"epfabric-agent-{fabric}{tail}"[:58] + "abcde"
        installed.create({**agent_pod(A, FABRIC), "metadata": {"name": name, "namespace": NODES}})
        try:
            agent = bound(installed, name)
            assert agent.apply(group(fabric=fabric), "epfabric-agent")["kind"] == "EPGroup"
            installed.delete("epgroups", GROUP, TEAM)
            with pytest.raises(Refused, match="is none of the EPFabric"):
                agent.apply(group(fabric=f"{fabric[:40]}-"[:41] + "y"), "epfabric-agent")
        finally:
            installed.delete("pod", name, NODES)


OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt", "uid": "1-2"}
OF_NOBODY = "no finalizers, no annotations, and no label but epfabric.io/fabric"


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"finalizers": ["example.com/stay"]}, OF_NOBODY),
        ({"annotations": {"note": "x"}}, OF_NOBODY),
        ({"annotations": {"kept": "x"}}, OF_NOBODY),
        ({"labels": {"team": "x"}}, OF_NOBODY),
        ({"labels": {"empty": ""}}, OF_NOBODY),
        ({"labels": {"kept": "x"}}, OF_NOBODY),
        ({"labels": {"epfabric.io/fabric": "chart-mo"}}, OF_NOBODY),
        ({"ownerReferences": [OWNER, {**OWNER, "uid": "3-4"}]}, "one owner"),
        ({"ownerReferences": [{**OWNER, "controller": True}]}, "one owner"),
        ({"ownerReferences": [{**OWNER, "blockOwnerDeletion": True}]}, "one owner"),
    ],
    ids=json.dumps,
)
def test_an_agent_changes_nothing_of_a_groups_metadata_that_is_not_its_own(
    installed: As, accounts: Accounts, metadata: Object, says: str
) -> None:
    """Neither when it makes the group nor afterwards, as its coordinator."""
    mine = {"labels": {"epfabric.io/fabric": FABRIC}}
    made = group()
    with pytest.raises(Refused, match=says):
        accounts.agent_a.apply({**made, "metadata": {**made["metadata"], **metadata}}, "x")
    made["metadata"] |= {"labels": {**mine["labels"], "kept": "1"}, "annotations": {"kept": "1"}}
    installed.create(made)
    try:
        accounts.agent_a.apply(state_metadata(mine), "epfabric-agent")
        write(accounts.agent_a, state(A, "Ready", 1))
        before = installed.get("epgroups", GROUP, TEAM)["metadata"]
        for who in (accounts.agent_a, accounts.agent_b):
            with pytest.raises(Refused, match=f"{says}|greater epoch"):
                who.apply(state_metadata(metadata), "x")
        with pytest.raises(Refused, match=OF_NOBODY):
            accounts.agent_a.patch("epgroups", GROUP, {"metadata": {"labels": None}}, TEAM)
        after = installed.get("epgroups", GROUP, TEAM)["metadata"]
        for part in ("labels", "annotations", "finalizers", "ownerReferences"):
            assert after.get(part) == before.get(part), part
    finally:
        installed.delete("epgroups", GROUP, TEAM)


def state_metadata(metadata: Object) -> Object:
    made = group()
    return {**made, "metadata": {**made["metadata"], **metadata}}


def test_only_its_coordinator_gives_a_group_its_owner(installed: As, accounts: Accounts) -> None:
    owned = state_metadata({"ownerReferences": [OWNER]})
    accounts.agent_a.apply(group(), "epfabric-agent")
    write(accounts.agent_a, state(A, "Ready", 1))
    with pytest.raises(Refused, match=f"coordinated by the node {A}.*greater epoch"):
        accounts.agent_b.apply(owned, "epfabric-agent")
    installed.delete("epgroups", GROUP, TEAM)


def test_who_coordinates_after_a_lost_agent_writes_group_and_owner(
    installed: As, accounts: Accounts, tmp_path: Path
) -> None:
    """The lost one could not say that its epoch is over; a new Job takes the group's name up."""
    uid = installed.get("configmap", "kube-root-ca.crt", TEAM)["metadata"]["uid"]
    first, second = (Owner("v1", "ConfigMap", "kube-root-ca.crt", uid), None)
    report(accounts.agent_a, tmp_path, A, first, GroupState("Ready", "", 1, 8, ()))
    found = installed.get("epgroups", GROUP, TEAM)
    assert found["metadata"]["ownerReferences"][0]["uid"] == uid
    report(accounts.agent_b, tmp_path, B, second, GroupState("Forming", "", 2, 4, ()))
    found = installed.get("epgroups", GROUP, TEAM)
    assert "ownerReferences" not in found["metadata"]
    assert (found["spec"]["worldSize"], found["status"]["epoch"]) == (4, 2)
    assert found["status"]["coordinator"]["node"] == B
    installed.delete("epgroups", GROUP, TEAM)


def report(who: As, folder: Path, node: str, owner: Owner | None, said: GroupState) -> None:
    """As the agent of the node writes it."""
    settings = yaml.safe_load(who.cluster.kubeconfig.read_text())
    settings["users"][0]["user"] = {"token": who.token}
    kubeconfig = folder / node
    kubeconfig.write_text(yaml.safe_dump(settings))
    api = connect(kubeconfig)
    reporter = GroupReporter(api, FABRIC, lambda: Agent(node, "10.0.0.1:7470"), lambda _: None)

    async def run() -> None:
        reporter.state(Pod("p", TEAM, "p", GROUP, owner, folder), said)
        task = asyncio.create_task(reporter.run())
        path = f"/apis/epfabric.io/v1alpha1/namespaces/{TEAM}/epgroups/{GROUP}"
        written: Callable[[], bool] = lambda: (  # noqa: E731
            ((api.get(path) or {}).get("status") or {}).get("epoch") == said.epoch
        )
        try:
            await asyncio.to_thread(wait_until, written, WAIT_S, "the group is written")
        finally:
            task.cancel()

    asyncio.run(run())
