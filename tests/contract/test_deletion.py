"""A deleted fabric leaves nothing behind, whoever is away while it is deleted."""

from __future__ import annotations

import signal

from contract.stand import NODES_NAMESPACE, Stand
from epfabric_crds import names
from harness.process import Process


def made(stand: Stand, name: str, process: Process) -> str:
    """A fabric over one node; the node's name."""
    node = f"{name}-node"
    stand.node(node, name)
    stand.apply(stand.fabric(name))
    stand.eventually(lambda: stand.find("epfn", node) is not None, node, process)
    stand.agent(node)
    stand.eventually(
        lambda: stand.condition("epf", name, "Ready").get("status") == "True", name, process
    )
    assert left(stand, name, node) == [
        "daemonset",
        "epf",
        "epfn",
        "label",
        "mutatingadmissionpolicybinding",
    ]
    return node


def left(stand: Stand, name: str, node: str) -> list[str]:
    things = {
        "epf": ("epf", name),
        "epfn": ("epfn", node),
        "daemonset": ("daemonset", names.agent_daemonset(name), "-n", NODES_NAMESPACE),
        "mutatingadmissionpolicybinding": (
            "mutatingadmissionpolicybinding",
            names.policy_binding(name),
        ),
    }
    found = [kind for kind, thing in things.items() if stand.find(*thing) is not None]
    return sorted([*found, *(["label"] if stand.label(node) else [])])


def test_a_fabric_has_no_finalizer(stand: Stand) -> None:
    name = f"{stand.prefix}-del0"
    with stand.operator() as operator:
        made(stand, name, operator)
        assert not stand.json("get", "epf", name)["metadata"].get("finalizers")
        stand.delete("epf", name)


def test_delete_cleans_up(stand: Stand) -> None:
    """By the operator alone, where Kubernetes is told to leave what is owned."""
    name = f"{stand.prefix}-del1"
    with stand.operator() as operator:
        node = made(stand, name, operator)
        stand.cluster.kubectl("delete", "epf", name, "--cascade=orphan", "--timeout=30s")
        stand.eventually(lambda: left(stand, name, node) == [], "nothing left", operator)


def test_delete_while_the_operator_is_away_does_not_hang(stand: Stand) -> None:
    name = f"{stand.prefix}-del2"
    with stand.operator() as operator:
        node = made(stand, name, operator)
        operator.signal(signal.SIGKILL)
        operator.ended.wait(30)
    for cascade in ("--cascade=foreground", "--timeout=60s"):
        stand.cluster.kubectl("delete", "epf", name, cascade, "--ignore-not-found", timeout_s=90)

    def only_the_label() -> bool:
        stand.end_pods(name)
        return left(stand, name, node) == ["label"]

    # What is owned goes by garbage collection; the label waits for the next operator.
    stand.eventually(only_the_label, "only the label left")
    with stand.operator("after") as operator:
        stand.eventually(lambda: left(stand, name, node) == [], "nothing left", operator)


def test_a_fabric_made_anew_under_the_same_name_owns_its_objects(stand: Stand) -> None:
    name = f"{stand.prefix}-del3"
    with stand.operator() as operator:
        node = made(stand, name, operator)
        operator.stop()
    stand.cluster.kubectl("delete", "epf", name, "--cascade=orphan")
    stand.apply(stand.fabric(name))
    uid = stand.json("get", "epf", name)["metadata"]["uid"]
    with stand.operator("after") as operator:

        def owners() -> set[str]:
            found = stand.find("epfn", node) or {"metadata": {}}
            return {o["uid"] for o in found["metadata"].get("ownerReferences", ())}

        stand.eventually(lambda: owners() == {uid}, "the new owner", operator)
        stand.delete("epf", name)
        stand.eventually(lambda: left(stand, name, node) == [], "nothing left", operator)
