"""Nodes as the operator knows them: a label that it wrote itself makes it look as well."""

from __future__ import annotations

from typing import Any, cast

from epfabric_operator.kube import Kube, Object
from epfabric_operator.nodes import NodeCache


def node(version: int, **labels: str) -> Object:
    meta: dict[str, Any] = {"name": "a", "uid": "u", "resourceVersion": str(version)}
    return {"metadata": {**meta, "labels": labels}}


def test_our_own_write_is_a_reason_to_look_once() -> None:
    told: list[str] = []
    cache = NodeCache(cast(Kube, None), lambda: told.append("look"))
    cache._take("ADDED", node(5, fabric="moe"))
    assert told == ["look"]
    cache.wrote(node(6))
    assert dict(cache.snapshot()["a"].labels) == {}
    assert len(told) == 2, "another fabric may wait for the node"
    cache._take("MODIFIED", node(6))
    cache.wrote(node(6))
    cache.wrote(node(5, fabric="moe"))
    cache.wrote(node(7))
    assert len(told) == 2
    assert dict(cache.snapshot()["a"].labels) == {}
