"""Status says what is so: each way to be unready has its reason, and none hides another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from epfabric_crds import EPFabric, EPFabricNode, EPFabricStatus, to_dict
from epfabric_crds.definitions import problems
from epfabric_operator.assignment import assign
from epfabric_operator.conditions import Verdict, fabric_status, node_verdict
from epfabric_operator.world import NodeMeta
from unit.operator.builders import condition, epnode, fabric, node, world

NOW = "2026-03-01T00:00:00Z"
READY = Verdict("True", "AgentReady", "m")
MISSING = Verdict("False", "AgentMissing", "no agent")
BROKEN = Verdict("False", "NoNic", "no NIC fits")


@pytest.mark.parametrize(
    ("found", "age", "status", "reason"),
    [
        (None, None, "False", "AgentMissing"),
        (epnode("n"), None, "False", "AgentMissing"),
        (None, 1.0, "False", "AgentMissing"),
        (epnode("n"), 1.0, "False", "AgentStarting"),
        # The Lease outlived an earlier fabric on this node.
        (epnode("n"), 3600.0, "False", "AgentMissing"),
        (epnode("n", conditions=[condition("TransportReady")]), 40.0, "True", "AgentReady"),
        (epnode("n", conditions=[condition("TransportReady")]), 40.1, "Unknown", "AgentSilent"),
        (
            epnode("n", conditions=[condition("TransportReady", "False", reason="NoNic")]),
            1.0,
            "False",
            "NoNic",
        ),
        (
            epnode("n", conditions=[condition("TransportReady", "False")]),
            99.0,
            "Unknown",
            "AgentSilent",
        ),
    ],
)
def test_a_node_is(found: EPFabricNode | None, age: float | None, status: str, reason: str) -> None:
    verdict = node_verdict(found, age)
    assert (verdict.status, verdict.reason) == (status, reason)


def status_of(
    verdicts: Mapping[str, Verdict],
    *more: NodeMeta | EPFabricNode | EPFabric,
    of: EPFabric | None = None,
    failure: str | None = None,
    down: frozenset[str] = frozenset(),
) -> EPFabricStatus:
    moe = of or fabric()
    made = world(moe, *(node(n, pool="moe", of="moe") for n in verdicts), *more, down=down)
    return fabric_status(moe, assign("moe", made), made, verdicts, failure, NOW)


def short(status: EPFabricStatus) -> dict[str, str]:
    return {c.type: f"{c.status} {c.reason}" for c in status.conditions}


HEALTHY = {
    "Ready": "True Ready",
    "Reconciling": "False Done",
    "Stalled": "False Progressing",
    "AgentsReady": "True AgentsReady",
    "Degraded": "False AgentsReady",
    "PolicyOverlap": "False NoOverlap",
}


@pytest.mark.parametrize(
    ("verdicts", "options", "expected"),
    [
        ({"a": READY, "b": READY}, {}, {}),
        (
            {"a": READY, "b": MISSING},
            {},
            {
                "Ready": "False AgentsFailing",
                "AgentsReady": "False AgentsFailing",
                "Reconciling": "True AgentsStarting",
            },
        ),
        (
            {"a": READY, "b": BROKEN},
            {},
            {
                "Ready": "False AgentsFailing",
                "AgentsReady": "False AgentsFailing",
                "Degraded": "True AgentsFailing",
            },
        ),
        ({"a": READY, "b": MISSING}, {"down": frozenset({"b"})}, {}),
        (
            {"a": MISSING},
            {"down": frozenset({"a"})},
            {"Ready": "False NodesNotReady", "AgentsReady": "False NoNodes"},
        ),
        ({}, {}, {"Ready": "False NoNodes", "AgentsReady": "False NoNodes"}),
        (
            {"a": READY},
            {"failure": "the API server said no"},
            {"Ready": "False Refused", "Stalled": "True Refused"},
        ),
        (
            {"a": READY},
            {"of": fabric(barrier={"algorithm": "dissemination"})},
            {"Ready": "False NotSupported", "Stalled": "True NotSupported"},
        ),
        (
            {"a": READY},
            {"of": fabric(onRankLoss="Mask")},
            {},
        ),
    ],
)
def test_a_fabric_is(
    verdicts: dict[str, Verdict], options: dict[str, Any], expected: dict[str, str]
) -> None:
    assert short(status_of(verdicts, **options)) == {**HEALTHY, **expected}


def test_ready_says_what_a_broken_node_says() -> None:
    found = status_of({"a": MISSING, "b": BROKEN, "c": READY})
    ready = next(c for c in found.conditions if c.type == "Ready")
    assert ready.message == "1 of 3 agents are ready; b: no NIC fits"


def test_counts_add_up_and_a_node_that_is_down_fails_nothing() -> None:
    found = status_of(
        {"a": READY, "b": BROKEN, "c": MISSING},
        fabric("other"),
        NodeMeta("d", "u", {"pool": "moe", "epfabric.io/fabric": "other"}),
        down=frozenset({"c"}),
        of=fabric(),
    )
    assert to_dict(found.nodes) == {
        "selected": 4,
        "assigned": 4,
        "contested": 0,
        "notReady": 1,
        "ready": 1,
        "failing": 1,
    }
    assert [f.node for f in found.failing] == ["b"]


def test_a_contested_node_is_told_with_its_owner() -> None:
    other = fabric("other", nodeSelector={})
    taken = node("t", pool="moe", of="other")
    found = status_of({}, other, taken)
    overlap = next(c for c in found.conditions if c.type == "PolicyOverlap")
    assert overlap.status == "True"
    assert "t (other)" in overlap.message
    ready = next(c for c in found.conditions if c.type == "Ready")
    assert ready.reason == "PolicyOverlap"


def test_a_thousand_failing_nodes_name_ten_and_fit_the_schema() -> None:
    verdicts = {f"node-{i:04}-{'x' * 200}": BROKEN for i in range(1000)}
    found = status_of(verdicts)
    assert len(found.failing) == 10
    assert found.nodes is not None
    assert found.nodes.failing == 1000
    whole = to_dict(fabric()) | {"status": to_dict(found)}
    assert problems("EPFabric", whole) == []


def test_agents_own_conditions_are_summed_up() -> None:
    nodes = [
        epnode("a", conditions=[condition("ProxiesLocal"), condition("CPUConstrained", "False")]),
        epnode(
            "b",
            conditions=[
                condition("ProxiesLocal", "False", reason="NoCore", message="no core is left"),
                condition("CPUConstrained", "True", reason="FewCores"),
            ],
        ),
    ]
    found = short(status_of({"a": READY, "b": READY}, *nodes))
    assert found["ProxiesLocal"] == "False NoCore"
    assert found["CPUConstrained"] == "True FewCores"
    assert found["Ready"] == "True Ready"
    calm = short(status_of({"a": READY}, nodes[0]))
    assert calm["ProxiesLocal"] == "True AllNodes"
    assert calm["CPUConstrained"] == "False AllNodes"


def test_transports_are_counted_with_their_provider() -> None:
    tcp = {"type": "libfabric", "provider": "tcp;ofi_rxm"}
    found = status_of(
        {"a": READY, "b": READY, "c": READY},
        epnode("a", transport=tcp, sessions=2),
        epnode("b", transport=tcp, sessions=3),
        epnode("c", transport={"type": "verbs"}),
    )
    assert {t.type: t.nodes for t in found.transports} == {"libfabric/tcp;ofi_rxm": 2, "verbs": 1}
    assert found.sessions == 5


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    before = "2026-01-01T00:00:00Z"
    moe = EPFabric.from_dict(
        to_dict(fabric())
        | {"status": {"conditions": [condition("Ready", "False"), condition("Stalled", "True")]}}
    )
    times = {c.type: c.last_transition_time for c in status_of({"a": BROKEN}, of=moe).conditions}
    assert times["Ready"] == before
    assert times["Stalled"] == NOW


def test_a_node_outside_every_pool_is_told_so() -> None:
    moe = fabric(agent={"pools": [{"name": "big", "nodeSelector": {"size": "big"}}]})
    found = status_of({"a": MISSING}, of=moe)
    assert "matches no pool" in (found.failing[0].message or "")
