"""Argo CD's health of our objects, in Lua 5.1 as there, over statuses that our code makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from epfabric_crds import EPFabricNode, to_dict
from epfabric_operator.conditions import Verdict, node_verdict
from lupa import lua51

from .builders import condition, epnode, fabric
from .test_conditions import BROKEN, MISSING, NOW, READY, status_of

GITOPS = Path(__file__).resolve().parents[3] / "examples" / "gitops"
HEALTH: dict[str, str] = yaml.safe_load((GITOPS / "argocd-health.yaml").read_text())["data"]


def health(kind: str, body: dict[str, Any]) -> tuple[str, str]:
    """Status and message, as Argo CD would show them."""
    lua = lua51.LuaRuntime(unpack_returned_tuples=True)
    lua.globals().obj = lua.table_from(body, recursive=True)
    answer = lua.execute(HEALTH[f"resource.customizations.health.epfabric.io_{kind}"])
    return str(answer.status), str(answer.message)


def of_fabric(verdicts: dict[str, Verdict], generation: int = 3, **options: Any) -> tuple[str, str]:
    status = to_dict(status_of(verdicts, **options))
    return health("EPFabric", {"metadata": {"generation": generation}, "status": status})


@pytest.mark.parametrize(
    ("verdicts", "options", "expected"),
    [
        ({"a": READY, "b": READY}, {}, "Healthy"),
        ({"a": READY, "b": MISSING}, {}, "Progressing"),
        ({"a": READY, "b": BROKEN}, {}, "Degraded"),
        ({"a": READY, "b": MISSING}, {"down": frozenset({"b"})}, "Healthy"),
        ({}, {}, "Degraded"),
        ({"a": READY}, {"failure": "the API server said no"}, "Degraded"),
        ({"a": READY}, {"generation": 4}, "Progressing"),
        ({"a": READY}, {"of": fabric(barrier={"algorithm": "dissemination"})}, "Degraded"),
    ],
)
def test_a_fabrics_health(
    verdicts: dict[str, Verdict], options: dict[str, Any], expected: str
) -> None:
    status, message = of_fabric(verdicts, **options)
    assert status == expected
    assert len(message) > 10


def test_a_refusal_is_what_people_read() -> None:
    assert "the API server said no" in of_fabric({"a": READY}, failure="the API server said no")[1]


def test_what_nobody_has_looked_at_is_on_its_way() -> None:
    for kind in ("EPFabric", "EPFabricNode", "EPGroup"):
        assert health(kind, {"metadata": {"generation": 1}})[0] == "Progressing"


@pytest.mark.parametrize(
    ("found", "age_s", "expected"),
    [
        (epnode("a"), None, "Progressing"),
        (epnode("a"), 1.0, "Progressing"),
        (epnode("a", conditions=[condition("TransportReady")]), 1.0, "Healthy"),
        (epnode("a", conditions=[condition("TransportReady")]), 100.0, "Degraded"),
        (epnode("a", conditions=[condition("TransportReady", "False")]), 1.0, "Degraded"),
        (
            epnode("a", conditions=[condition("TransportReady"), condition("Degraded")]),
            1.0,
            "Degraded",
        ),
    ],
)
def test_a_nodes_health(found: EPFabricNode, age_s: float | None, expected: str) -> None:
    """With the condition that the operator adds."""
    ready = to_dict(node_verdict(found, age_s).at("Ready", NOW, 1))
    conditions = [*(to_dict(c) for c in found.status.conditions), ready]
    assert health("EPFabricNode", {"status": {"conditions": conditions}})[0] == expected


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("Forming", "Progressing"),
        ("Ready", "Healthy"),
        ("Completed", "Healthy"),
        ("Failed", "Degraded"),
    ],
)
def test_a_groups_health(phase: str, expected: str) -> None:
    status = {"phase": phase, "reason": "rank 3 of pod x is gone"}
    assert health("EPGroup", {"status": status}) == (expected, "rank 3 of pod x is gone")
