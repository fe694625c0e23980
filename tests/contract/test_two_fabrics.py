"""A node that two fabrics select is one's at any moment, and all that is said of it agrees."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from contract.stand import WAIT_S, Stand
from epfabric_crds import names
from harness.audit import Write
from harness.process import Process

QUIET_S = 3.0  # three resyncs


@dataclass(frozen=True)
class Rivals:
    """`holder` has the nodes, which `elder`, the older of the two, selects as well."""

    stand: Stand
    operator: Process
    elder: str
    holder: str
    nodes: tuple[str, str]

    def label(self, node: str, label: str) -> None:
        self.stand.cluster.kubectl("label", "node", node, "--overwrite", label)

    def give(self, node: str, fabric: str) -> None:
        self.label(node, f"{names.FABRIC_LABEL}={fabric}")

    def eventually(self, check: Callable[[], bool], what: str) -> None:
        self.stand.eventually(check, what, self.operator)

    def await_owner(self, fabric: str, *nodes: str) -> None:
        """Waits until labels, EPFabricNodes and agents' pods say that the nodes are `fabric`'s."""
        uid = self.stand.json("get", "epf", fabric)["metadata"]["uid"]
        for node in nodes:
            self.eventually(partial(self._is_of, node, fabric, uid), f"{node} to be of {fabric}")

    def _is_of(self, node: str, fabric: str, uid: str) -> bool:
        epnode = self.stand.find("epfn", node)
        if self.stand.label(node) != fabric or epnode is None:
            return False
        owners = [owner["uid"] for owner in epnode["metadata"]["ownerReferences"]]
        return bool(
            epnode["spec"]["fabric"] == fabric and owners == [uid] and self.pods(node) == [fabric]
        )

    def pods(self, node: str) -> list[str]:
        """Fabrics whose agents are on the node, after a kubelet's part."""
        found = []
        for fabric in (self.elder, self.holder):
            self.stand.end_pods(fabric)
            placed = [wanted_node(pod) for pod in self.stand.agents_pods(fabric)]
            found += [fabric] * placed.count(node)
        return found

    def await_overlap(self, fabric: str, has: str, *nodes: str) -> None:
        """Waits until `fabric` says that `has` has these nodes, which it selects too."""
        listed = ", ".join(f"{node} ({has})" for node in sorted(nodes))
        begin = f"{len(nodes)} selected nodes belong to another fabric"

        def told() -> bool:
            status = self.stand.json("get", "epf", fabric).get("status", {})
            found = {c["type"]: c for c in status.get("conditions", ())}.get("PolicyOverlap", {})
            if status.get("nodes", {}).get("contested") != len(nodes):
                return False
            if not nodes:
                return bool(found["status"] == "False")
            message = found["message"]
            return found["status"] == "True" and message.startswith(begin) and listed in message

        self.eventually(told, f"{fabric} to say that {has} has {nodes}")

    def counts(self, fabric: str) -> dict[str, int]:
        found: dict[str, int] = self.stand.json("get", "epf", fabric)["status"]["nodes"]
        return found

    def writes(self, since: int) -> list[Write]:
        """The operator's, without its Lease."""
        return [
            write
            for write in self.stand.cluster.audit.writes(since)
            if write.agent.startswith("epfabric-operator/") and write.resource != "leases"
        ]

    def apply(self, fabric: str, **more: str) -> None:
        """Each selects the nodes by a label of its own."""
        self.stand.apply(self.stand.fabric(fabric, nodeSelector={fabric: "yes", **more}))


def wanted_node(pod: dict[str, Any]) -> str:
    """Where the DaemonSet's controller wants a pod, which the scheduler may not have placed yet."""
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {})
    fields = [f for t in required.get("nodeSelectorTerms", ()) for f in t.get("matchFields", ())]
    return next((f["values"][0] for f in fields if f["key"] == "metadata.name"), "")


@pytest.fixture(scope="module")
def made(stand: Stand, operator: Process) -> Iterator[Rivals]:
    prefix = f"{stand.prefix}-two"
    nodes = (f"{prefix}-n0", f"{prefix}-n1")
    made = Rivals(stand, operator, f"{prefix}-elder", f"{prefix}-holder", nodes)
    for node in nodes:
        stand.node(node, made.holder)
        made.label(node, f"{made.holder}=yes")
    made.apply(made.elder)
    seen = lambda: bool(stand.condition("epf", made.elder, "Ready"))  # noqa: E731
    stand.eventually(seen, "the elder to be seen", operator)
    made.apply(made.holder)
    made.await_owner(made.holder, *nodes)
    for node in nodes:
        made.label(node, f"{made.elder}=yes")
    try:
        yield made
    finally:
        stand.delete("epf", made.elder, made.holder)


@pytest.fixture
def rivals(made: Rivals) -> Rivals:
    """The holder has both nodes again, and both fabrics say so."""
    made.apply(made.elder)
    made.apply(made.holder)
    for node in made.nodes:
        made.give(node, made.holder)
    made.await_owner(made.holder, *made.nodes)
    made.await_overlap(made.elder, made.holder, *made.nodes)
    made.await_overlap(made.holder, made.elder)
    return made


def test_the_one_that_has_it_keeps_it_and_nothing_is_written_at_rest(rivals: Rivals) -> None:
    assert rivals.counts(rivals.holder) == counts(selected=2, assigned=2)
    assert rivals.counts(rivals.elder) == counts(selected=2, contested=2)
    ready = rivals.stand.condition("epf", rivals.elder, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "PolicyOverlap")
    told = [
        event
        for event in rivals.stand.json("get", "events.events.k8s.io", "-n", "default")["items"]
        if event["reason"] == "NodesContested"
        and event["regarding"]["name"] in (rivals.elder, rivals.holder)
    ]
    assert {event["regarding"]["name"] for event in told} == {rivals.elder}
    # One is told once, when it begins, of what was contested then.
    assert [any(node in event["note"] for node in rivals.nodes) for event in told] == [True]
    end = time.monotonic() + WAIT_S  # the DaemonSets' controller may still have to say something
    while True:
        mark = rivals.stand.cluster.audit.end()
        time.sleep(QUIET_S)
        if (written := rivals.writes(mark)) == []:
            return
        assert time.monotonic() < end, written


def counts(**given: int) -> dict[str, int]:
    fields = ("selected", "assigned", "contested", "notReady", "ready", "failing")
    failing = {"failing": given.get("assigned", 0)}  # no agent runs here
    return {**dict.fromkeys(fields, 0), **failing, **given}


@pytest.mark.parametrize("label", ["-", "=nobody"])
def test_a_label_that_was_changed_by_hand_comes_back(rivals: Rivals, label: str) -> None:
    mark = rivals.stand.cluster.audit.end()
    rivals.label(rivals.nodes[0], names.FABRIC_LABEL + label)
    rivals.await_owner(rivals.holder, *rivals.nodes)
    rivals.await_overlap(rivals.elder, rivals.holder, *rivals.nodes)
    changed = [w.name for w in rivals.writes(mark) if w.resource == "nodes" and w.code < 400]
    assert changed == [rivals.nodes[0]]


def test_a_label_that_names_the_other_hands_the_node_over(rivals: Rivals) -> None:
    node, other = rivals.nodes
    rivals.give(node, rivals.elder)
    rivals.await_owner(rivals.elder, node)
    rivals.await_owner(rivals.holder, other)
    rivals.await_overlap(rivals.holder, rivals.elder, node)
    rivals.await_overlap(rivals.elder, rivals.holder, other)


def test_a_node_that_is_selected_no_more_goes_to_the_other(rivals: Rivals) -> None:
    goes, stays = rivals.nodes
    rivals.label(stays, "keep=yes")
    rivals.apply(rivals.holder, keep="yes")
    rivals.await_owner(rivals.elder, goes)
    rivals.await_owner(rivals.holder, stays)
    rivals.await_overlap(rivals.elder, rivals.holder, stays)
    rivals.await_overlap(rivals.holder, rivals.elder)


def test_a_deleted_fabrics_nodes_go_to_the_other(rivals: Rivals) -> None:
    rivals.stand.delete("epf", rivals.holder)
    rivals.await_owner(rivals.elder, *rivals.nodes)
    rivals.await_overlap(rivals.elder, rivals.holder)


def test_two_that_are_made_at_one_moment_share_without_a_change_of_mind(rivals: Rivals) -> None:
    stand, both = rivals.stand, (rivals.holder, rivals.elder)
    stand.cluster.kubectl("delete", "epf", *both)

    def free() -> bool:
        return not any(stand.label(node) or stand.find("epfn", node) for node in rivals.nodes)

    rivals.eventually(free, "the nodes to be free")
    mark = stand.cluster.audit.end()
    makers = [threading.Thread(target=rivals.apply, args=(name,)) for name in both]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(WAIT_S)
        assert not maker.is_alive(), "it is not made"
    rivals.eventually(lambda: all(map(stand.label, rivals.nodes)), "every node is somebody's")
    has = stand.label(rivals.nodes[0])
    assert has in both
    (loses,) = set(both) - {has}
    rivals.await_owner(has, *rivals.nodes)
    rivals.await_overlap(loses, has, *rivals.nodes)
    rivals.await_overlap(has, loses)
    done = [w for w in rivals.writes(mark) if w.code < 400]
    tally: Counter[tuple[str, ...]] = Counter((w.verb, w.resource, w.name) for w in done)
    for node in rivals.nodes:
        assert tally["patch", "nodes", node] == 1
        assert tally["patch", "epfabricnodes", node] == 1
        assert tally["delete", "epfabricnodes", node] == 0
