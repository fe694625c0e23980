"""Wrong objects are refused with a sentence that names the field; right ones come back whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from epfabric_crds import EPFabric, EPFabricNode, EPGroup, LabelSelector, MirrorError, to_dict
from epfabric_crds.definitions import problems
from epfabric_crds.quantity import duration_ms, short_duration_us, size_bytes

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def fabric(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPFabric",
        "metadata": {"name": "moe"},
        "spec": {"namespaceSelector": {}, **spec},
    }


WRONG = [
    ({"transprt": {}}, "spec.transprt is not a field; did you mean transport?"),
    ({"transport": {"type": "tcp"}}, "spec.transport.type is 'tcp'; allowed are auto, verbs"),
    ({"proxies": {"perGPU": "4"}}, "spec.proxies.perGPU must be an integer, not a string"),
    ({"proxies": {"perGPU": True}}, "spec.proxies.perGPU must be an integer, not a boolean"),
    ({"transport": []}, "spec.transport must be an object, not a list"),
    ({"tenants": {}}, "spec.tenants must be a list, not an object"),
    ({"tenants": [{"name": "a"}]}, "spec.tenants[0].namespaceSelector is required"),
    ({"nodeSelector": {"a": 1}}, "spec.nodeSelector[a] must be a string, not an integer"),
]


@pytest.mark.parametrize(("spec", "sentence"), WRONG)
def test_a_wrong_field_is_named(spec: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MirrorError) as caught:
        EPFabric.from_dict(fabric(**spec))
    assert str(caught.value).startswith(sentence)


def test_a_newer_field_is_dropped_only_when_asked() -> None:
    data = fabric(newer={"a": 1})
    assert "newer" not in to_dict(EPFabric.from_dict(data, strict=False).spec)
    with pytest.raises(MirrorError, match=r"spec\.newer is not a field"):
        EPFabric.from_dict(data)


def test_metadata_of_an_api_server_is_read_in_strict_mode_too() -> None:
    data = fabric()
    data["metadata"] |= {"managedFields": [{}], "uid": "u", "creationTimestamp": "t"}
    assert EPFabric.from_dict(data).metadata.uid == "u"


def test_the_example_round_trips() -> None:
    data = yaml.safe_load((EXAMPLES / "moe.yaml").read_text())
    parsed = EPFabric.from_dict(data)
    assert EPFabric.from_dict(to_dict(parsed)) == parsed
    assert problems("EPFabric", data) == []
    assert parsed.spec.rings == 8


def test_status_round_trips() -> None:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "R",
        "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    node = {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPFabricNode",
        "metadata": {"name": "a"},
        "spec": {"fabric": "moe", "nodeUid": "u"},
        "status": {
            "endpoint": "10.0.0.1:7470",
            "topology": {"numaNodes": 2, "nics": [{"name": "e", "addresses": ["10.0.0.1"]}]},
            "proxies": [{"session": "s", "cpu": -1}],
            "conditions": [condition],
        },
    }
    assert problems("EPFabricNode", node) == []
    assert to_dict(EPFabricNode.from_dict(node))["status"] == node["status"]
    group = {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPGroup",
        "metadata": {"name": "a", "namespace": "n"},
        "spec": {"fabric": "moe", "worldSize": 8},
        "status": {"phase": "Ready", "nodes": [{"node": "a", "ranks": "0-1,4"}]},
    }
    assert problems("EPGroup", group) == []
    assert to_dict(EPGroup.from_dict(group)) == group


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"fifo": {"depth": 1000}}, "spec.fifo.depth is 1000; allowed are 16, 32"),
        ({"proxies": {"perGPU": 0}}, "spec.proxies.perGPU is 0; it must be at least 1"),
        ({"nics": {"mtu": 1 << 20}}, "spec.nics.mtu is 1048576; it must be at most 9978"),
        ({"nics": {"pfc": "on"}}, "spec.nics.pfc is 'on'; it must match"),
        ({"nics": {"mtu": True}}, "spec.nics.mtu must be of type integer"),
        ({"nodeSelector": {str(i): "" for i in range(17)}}, "spec.nodeSelector has 17 entries"),
        ({"nodeSelector": {"a": "b" * 64}}, "spec.nodeSelector[a] is longer than 63"),
        ({"tenants": [{"namespaceSelector": {}}]}, "spec.tenants[0].name is required"),
        ({"unknown": 1}, "spec.unknown is not a field"),
    ],
)
def test_the_structural_schema_is_checked_without_a_server(
    spec: dict[str, Any], sentence: str
) -> None:
    found = problems("EPFabric", fabric(**spec))
    assert len(found) == 1
    assert found[0].startswith(sentence)


@pytest.mark.parametrize(
    ("labels", "matches"),
    [({"a": "1"}, True), ({"a": "1", "x": ""}, False), ({"a": "2"}, False), ({}, False)],
)
def test_a_selector_needs_every_requirement(labels: dict[str, str], matches: bool) -> None:
    selector = EPFabric.from_dict(
        fabric(
            namespaceSelector={
                "matchLabels": {"a": "1"},
                "matchExpressions": [
                    {"key": "x", "operator": "DoesNotExist"},
                    {"key": "y", "operator": "NotIn", "values": ["1"]},
                    {"key": "a", "operator": "Exists"},
                    {"key": "a", "operator": "In", "values": ["1", "2"]},
                ],
            }
        )
    ).spec.namespace_selector
    assert selector.matches(labels) is matches
    assert LabelSelector().matches(labels)


def test_sizes_and_durations_are_read_in_their_units() -> None:
    assert [size_bytes(s) for s in ("1", "3Ki", "4Gi")] == [1, 3072, 4 << 30]
    assert [duration_ms(s) for s in ("500ms", "30s", "5m", "1h")] == [500, 30000, 300000, 3600000]
    for wrong in ("", "0s", "1.5s", "5 m", "s"):
        with pytest.raises(ValueError, match="is not a duration"):
            duration_ms(wrong)
    short = [short_duration_us(s) for s in ("500us", "10ms", "2s", "0s")]
    assert short == [500, 10_000, 2_000_000, 0]
    for wrong in ("", "0ms", "1m", "1.5ms", "ms"):
        with pytest.raises(ValueError, match="is not a short duration"):
            short_duration_us(wrong)
    for wrong in ("", "0", "1G", "-1Gi", "4gi"):
        with pytest.raises(ValueError, match="is not a size"):
            size_bytes(wrong)
