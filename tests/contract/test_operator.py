"""The operator as a real process against the real API server: from an EPFabric to Ready."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from contract.stand import NODES_NAMESPACE, OPERATOR, Stand, stamp
from epfabric_crds import names
from harness.process import Process


@pytest.fixture(scope="module")
def fabric(stand: Stand, operator: Process) -> str:
    """A fabric over two nodes whose agents run."""
    name = f"{stand.prefix}-fabric"
    for node in ("a", "b"):
        stand.node(f"{stand.prefix}-{node}", name)
    stand.apply(stand.fabric(name))
    for node in ("a", "b"):
        full = f"{stand.prefix}-{node}"
        stand.eventually(partial(exists, stand, full), full, operator)
        stand.agent(full)
    return name


def exists(stand: Stand, node: str) -> bool:
    return stand.find("epfn", node) is not None


def per_gpu_is(stand: Stand, node: str, count: int) -> bool:
    return bool(stand.json("get", "epfn", node)["spec"]["proxies"]["perGPU"] == count)


def ready(stand: Stand, name: str, status: str = "True") -> bool:
    return bool(stand.condition("epf", name, "Ready").get("status") == status)


def test_wait_for_ready_returns(stand: Stand, fabric: str) -> None:
    stand.cluster.kubectl("wait", "--for=condition=Ready", f"epfabric/{fabric}", "--timeout=60s")
    found = stand.json("get", "epf", fabric)
    status = found["status"]
    assert status["observedGeneration"] == found["metadata"]["generation"]
    assert status["nodes"] == {
        "selected": 2,
        "assigned": 2,
        "contested": 0,
        "notReady": 0,
        "ready": 2,
        "failing": 0,
    }
    assert status["transports"] == [{"type": "libfabric/tcp;ofi_rxm", "nodes": 2}]
    assert status["sessions"] == 4
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    assert conditions == {
        "Ready": "True",
        "Reconciling": "False",
        "Stalled": "False",
        "AgentsReady": "True",
        "Degraded": "False",
        "PolicyOverlap": "False",
        "UpdatePending": "False",
    }
    row = stand.cluster.kubectl("get", "epf", fabric, "--no-headers").split()
    assert row[:5] == [fabric, "True", "2", "2", "4"]


def test_everything_that_the_fabric_owns_is_there(stand: Stand, fabric: str) -> None:
    uid = stand.json("get", "epf", fabric)["metadata"]["uid"]
    owned = [
        stand.json("get", "daemonset", names.agent_daemonset(fabric), "-n", NODES_NAMESPACE),
        stand.json("get", "mutatingadmissionpolicybinding", names.policy_binding(fabric)),
        stand.json("get", "epfn", f"{stand.prefix}-a"),
    ]
    for item in owned:
        (owner,) = item["metadata"]["ownerReferences"]
        assert owner["uid"] == uid
        assert not owner.get("blockOwnerDeletion")
    daemonset, binding, epnode = owned
    pod = daemonset["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {names.FABRIC_LABEL: fabric}
    assert pod["hostNetwork"] is True
    assert pod["containers"][0]["image"] == "epfabric-agent:test"
    assert binding["spec"]["policyName"] == names.INJECT_POLICY
    assert binding["spec"]["paramRef"] == {"name": fabric, "parameterNotFoundAction": "Allow"}
    selector = binding["spec"]["matchResources"]["namespaceSelector"]
    assert selector == {"matchLabels": {"contract": fabric}}
    node = stand.json("get", "node", f"{stand.prefix}-a")
    assert epnode["spec"]["nodeUid"] == node["metadata"]["uid"]
    assert epnode["spec"]["transport"] == {"type": "auto", "allowTcp": True}
    assert epnode["spec"]["proxies"]["maxInflight"] == 256
    assert daemonset["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_a_fabric_at_rest_is_not_written_to(stand: Stand, fabric: str, operator: Process) -> None:
    stand.eventually(lambda: ready(stand, fabric), "Ready", operator)

    def versions() -> list[str]:
        things = [
            ("epf", fabric),
            ("epfn", f"{stand.prefix}-a"),
            ("daemonset", names.agent_daemonset(fabric), "-n", NODES_NAMESPACE),
            ("mutatingadmissionpolicybinding", names.policy_binding(fabric)),
        ]
        return [stand.json("get", *thing)["metadata"]["resourceVersion"] for thing in things]

    before = versions()
    # A change of another fabric makes the operator look at all of them: afterwards it has.
    probe = f"{stand.prefix}-probe"
    stand.apply(stand.fabric(probe))
    stand.eventually(
        lambda: stand.condition("epf", probe, "Ready").get("reason") == "NoNodes", probe, operator
    )
    stand.delete("epf", probe)
    assert versions() == before


def test_a_silent_agent_is_unknown_and_named(stand: Stand, fabric: str, operator: Process) -> None:
    node = f"{stand.prefix}-silent"
    stand.node(node, fabric)
    stand.eventually(lambda: exists(stand, node), node, operator)
    # Its Lease is old at first sight, but not too old: what lacks passes by the operator's clock.
    stand.agent(node, renewed=stamp(ago_s=names.LEASE_SECONDS - 8))
    stand.eventually(
        lambda: stand.condition("epfn", node, "Ready").get("status") == "Unknown",
        "Unknown",
        operator,
    )
    stand.eventually(lambda: ready(stand, fabric, "False"), "not Ready", operator)
    status = stand.json("get", "epf", fabric)["status"]
    assert [f["node"] for f in status["failing"]] == [node]
    assert node in stand.condition("epf", fabric, "Degraded")["message"]
    assert stand.condition("epfn", node, "Ready")["reason"] == "AgentSilent"
    # The agent's own conditions are untouched by the operator's.
    assert stand.condition("epfn", node, "TransportReady")["status"] == "True"
    stand.agent(node)
    stand.eventually(lambda: ready(stand, fabric), "Ready again", operator)
    stand.mute(node)
    stand.delete("node", node)
    stand.eventually(lambda: not exists(stand, node), "EPFabricNode gone", operator)


def test_an_agent_without_transport_says_why(stand: Stand, fabric: str, operator: Process) -> None:
    node = f"{stand.prefix}-a"
    stand.agent(node, transport="False")
    stand.eventually(lambda: ready(stand, fabric, "False"), "not Ready", operator)
    assert "no NIC fits" in stand.condition("epf", fabric, "Ready")["message"]
    stand.agent(node)
    stand.eventually(lambda: ready(stand, fabric), "Ready again", operator)


def test_a_lost_node_is_counted_apart(stand: Stand, fabric: str, operator: Process) -> None:
    node = f"{stand.prefix}-lost"
    stand.node(node, fabric)
    stand.eventually(lambda: stand.label(node) == fabric, "label", operator)
    stand.silence(node)

    def counts() -> dict[str, Any]:
        found: dict[str, Any] = stand.json("get", "epf", fabric)["status"]["nodes"]
        return found

    stand.eventually(lambda: counts()["notReady"] == 1, "counted", operator)
    stand.eventually(lambda: ready(stand, fabric), "Ready all the same", operator)
    assert counts()["failing"] == 0
    stand.delete("node", node)
    stand.eventually(lambda: stand.find("epfn", node) is None, "EPFabricNode gone", operator)


def test_a_node_made_anew_gets_a_new_epfabricnode(
    stand: Stand, fabric: str, operator: Process
) -> None:
    node = f"{stand.prefix}-anew"
    first = stand.node(node, fabric)

    def uid() -> str | None:
        found = stand.find("epfn", node)
        return found["spec"]["nodeUid"] if found else None

    stand.eventually(lambda: uid() == first, "first", operator)
    second = stand.node(node, fabric)
    assert second != first
    stand.eventually(lambda: uid() == second, "second", operator)
    stand.delete("node", node)


def test_a_change_of_spec_reaches_every_node(stand: Stand, fabric: str, operator: Process) -> None:
    stand.apply(stand.fabric(fabric, proxies={"perGPU": 2}))
    for node in ("a", "b"):
        full = f"{stand.prefix}-{node}"
        stand.eventually(partial(per_gpu_is, stand, full, 2), full, operator)


def test_what_no_agent_can_do_stalls_the_fabric(stand: Stand, operator: Process) -> None:
    name = f"{stand.prefix}-rings"
    stand.apply(stand.fabric(name, barrier={"algorithm": "dissemination"}))
    stand.eventually(
        lambda: stand.condition("epf", name, "Stalled").get("status") == "True", name, operator
    )
    assert "barrier.algorithm dissemination" in stand.condition("epf", name, "Ready")["message"]
    stand.eventually(lambda: "NotSupported" in events(stand, name), "event", operator)
    stand.delete("epf", name)


def test_a_contested_node_stays_with_the_fabric_that_has_it(
    stand: Stand, fabric: str, operator: Process
) -> None:
    other = f"{stand.prefix}-other"
    own = f"{stand.prefix}-own"
    stand.node(own, other)
    stand.apply(
        stand.fabric(
            other,
            nodeSelector={},
        )
    )
    stand.eventually(lambda: stand.label(own) == other, "its own node", operator)
    stand.eventually(
        lambda: stand.condition("epf", other, "PolicyOverlap").get("status") == "True",
        "PolicyOverlap",
        operator,
    )
    message = stand.condition("epf", other, "PolicyOverlap")["message"]
    assert f"{stand.prefix}-a ({fabric})" in message
    assert stand.label(f"{stand.prefix}-a") == fabric
    assert stand.condition("epf", fabric, "PolicyOverlap")["status"] == "False"
    stand.eventually(lambda: "NodesContested" in events(stand, other), "event", operator)
    # When the first one lets go, the second one gets the node.
    node = f"{stand.prefix}-a"
    stand.objects.patch("node", node, {"metadata": {"labels": {"contract": "elsewhere"}}})
    stand.eventually(lambda: stand.label(node) == other, "handed over", operator)
    stand.eventually(
        lambda: (stand.find("epfn", node) or {"spec": {}})["spec"].get("fabric") == other,
        "its object, made anew",
        operator,
    )
    stand.delete("epf", other)
    stand.objects.patch("node", node, {"metadata": {"labels": {"contract": fabric}}})
    stand.eventually(lambda: stand.label(node) == fabric, "handed back", operator)


def events(stand: Stand, name: str) -> str:
    found = stand.json("get", "events.events.k8s.io", "-n", "default")["items"]
    return json.dumps([e["reason"] for e in found if e["regarding"].get("name") == name])


def test_an_operator_without_a_cluster_says_so(stand: Stand) -> None:
    path = stand.cluster.folder / "nowhere.kubeconfig"
    process = stand.cluster.processes.start(
        f"{stand.prefix}-nowhere",
        [OPERATOR, "--agent-image=x", f"--kubeconfig={path}", "--health-port=0"],
    )
    assert process.wait(60) == 4
    assert "no access to Kubernetes" in process.tail()
