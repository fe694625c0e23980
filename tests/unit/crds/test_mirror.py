"""The typed mirror equals the CRD YAML, field by field and default by default."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from epfabric_crds import EPFabric, EPFabricNode, EPFabricSpec, EPGroup, LabelSelector, to_dict
from epfabric_crds.convert import fields_of
from epfabric_crds.definitions import FILES, definition, schema

KINDS: dict[str, type] = {"EPFabric": EPFabric, "EPFabricNode": EPFabricNode, "EPGroup": EPGroup}
MISSING = dataclasses.MISSING


def unwrap(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        (inner,) = [arg for arg in get_args(hint) if arg is not type(None)]
        return inner, True
    return hint, False


def differences(rule: Mapping[str, Any], hint: Any, where: str) -> Iterator[str]:
    hint, _ = unwrap(hint)
    origin = get_origin(hint)
    if dataclasses.is_dataclass(hint):
        mine, theirs = set(fields_of(hint)), set(rule.get("properties", {}))
        yield from (f"{where}.{name} is in one of the two only" for name in sorted(mine ^ theirs))
        for name in sorted(mine & theirs):
            field, inner = fields_of(hint)[name]
            yield from differences(rule["properties"][name], inner, f"{where}.{name}")
            required = field.default is MISSING and field.default_factory is MISSING
            if required != (name in rule.get("required", [])):
                yield f"{where}.{name} is required in one of the two only"
    elif origin is tuple:
        if rule["type"] != "array":
            yield f"{where} is a list here and {rule['type']} there"
        else:
            yield from differences(rule["items"], get_args(hint)[0], f"{where}[]")
    elif origin is not None and origin is not Literal:
        if rule["type"] != "object" or "additionalProperties" not in rule:
            yield f"{where} is a map here and {rule} there"
    elif origin is Literal:
        if list(get_args(hint)) != rule.get("enum"):
            yield f"{where} allows {get_args(hint)} here and {rule.get('enum')} there"
    else:
        names = {str: "string", int: "integer", float: "number", bool: "boolean"}
        if names[hint] != rule["type"]:
            yield f"{where} is {names[hint]} here and {rule['type']} there"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", ["spec", "status"])
def test_no_field_stands_on_one_side_only(kind: str, part: str) -> None:
    _, hint = fields_of(KINDS[kind])[part]
    assert list(differences(schema(kind)["properties"][part], hint, f"{kind}.{part}")) == []


def filled(rule: Mapping[str, Any], value: Any) -> Any:
    """What an API server stores for `value`: defaults, parents first."""
    if rule["type"] == "object" and "properties" in rule:
        out = dict(value)
        for name, inner in rule["properties"].items():
            if name not in out and "default" in inner:
                out[name] = inner["default"]
            if name in out:
                out[name] = filled(inner, out[name])
        return out
    if rule["type"] == "array":
        return [filled(rule["items"], item) for item in value]
    return value


def without_empty(value: Any) -> Any:
    """Empty maps and lists mean the same as none at all."""
    if isinstance(value, Mapping):
        kept = {k: without_empty(v) for k, v in value.items()}
        return {k: v for k, v in kept.items() if v not in ({}, [])}
    return value


def test_the_mirrors_defaults_are_those_of_the_yaml() -> None:
    stored = filled(schema("EPFabric")["properties"]["spec"], {"namespaceSelector": {}})
    mine = to_dict(EPFabricSpec(namespace_selector=LabelSelector()))
    assert without_empty(mine) == without_empty(stored)


@pytest.mark.parametrize(
    ("path", "mirror"),
    [
        (
            "tenants",
            {"tenants": [{"name": "a", "namespaceSelector": {"matchLabels": {"a": "b"}}}]},
        ),
        ("agent", {"agent": {"pools": [{"name": "a", "hugepages": {"amount": "1Gi"}}]}}),
    ],
)
def test_defaults_inside_lists_are_those_of_the_yaml(path: str, mirror: dict[str, Any]) -> None:
    spec = {"namespaceSelector": {}, **mirror}
    parsed = EPFabric.from_dict({"metadata": {"name": "a"}, "spec": spec})
    stored = filled(schema("EPFabric")["properties"]["spec"], spec)
    assert to_dict(parsed.spec)[path] == stored[path]


def stripped(rule: Any) -> Any:
    """A schema without what EPFabricNode leaves to EPFabric: defaults and rules."""
    if isinstance(rule, Mapping):
        # A pattern in EPFabricNode would check again what EPFabric has checked by a rule.
        return {
            k: stripped(v)
            for k, v in rule.items()
            if k != "x-kubernetes-validations" and not (k == "default" and "type" in rule)
        }
    return rule


def test_what_a_node_is_told_has_the_schema_of_what_the_administrator_wrote() -> None:
    theirs = schema("EPFabric")["properties"]["spec"]["properties"]
    node = schema("EPFabricNode")["properties"]["spec"]["properties"]
    shared = set(node) - {"fabric", "nodeUid", "cordon"}
    assert shared == set(theirs) - {
        "nodeSelector",
        "namespaceSelector",
        "agent",
        "update",
    }
    # Which namespaces are a tenant's, the CSI driver finds out.
    of_tenant = set(theirs["tenants"]["items"]["properties"]) - {"namespaceSelector"}
    assert set(node["tenants"]["items"]["properties"]) == of_tenant
    for name in sorted(shared - {"tenants"}):
        assert stripped(theirs[name]) == node[name], name


def unbounded(rule: Mapping[str, Any], where: str) -> Iterator[str]:
    kind = rule["type"]
    if (
        kind == "string"
        and not {"maxLength", "enum"} & set(rule)
        and rule.get("format") != "date-time"
    ):
        yield where
    if kind == "array":
        if "maxItems" not in rule:
            yield where
        yield from unbounded(rule["items"], f"{where}[]")
    if kind == "object":
        if "additionalProperties" in rule:
            if "maxProperties" not in rule:
                yield where
            yield from unbounded(rule["additionalProperties"], f"{where}{{}}")
        for name, inner in rule.get("properties", {}).items():
            yield from unbounded(inner, f"{where}.{name}")


def undescribed(rule: Mapping[str, Any], where: str) -> Iterator[str]:
    for name, inner in rule.get("properties", {}).items():
        if "description" not in inner or not inner["description"].endswith((".", ")")):
            yield f"{where}.{name}"
        yield from undescribed(inner, f"{where}.{name}")
    if "items" in rule:
        yield from undescribed(rule["items"], f"{where}[]")


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("part", ["spec", "status"])
def test_every_list_map_and_string_is_bounded_and_described(kind: str, part: str) -> None:
    rule = schema(kind)["properties"][part]
    assert list(unbounded(rule, part)) == []
    assert list(undescribed(rule, part)) == []


def test_only_epfabric_has_defaults() -> None:
    assert "default:" not in str(definition("EPFabricNode")).replace("'", "")
    assert "default:" not in str(definition("EPGroup")).replace("'", "")


@pytest.mark.parametrize("kind", FILES)
def test_no_text_of_the_yaml_was_cut_at_a_comma(kind: str) -> None:
    def nulls(value: Any, where: str) -> Iterator[str]:
        items = dict(enumerate(value)) if isinstance(value, list) else value
        for key, item in items.items() if isinstance(items, Mapping) else ():
            if item is None:
                yield f"{where}.{key}"
            yield from nulls(item, f"{where}.{key}")

    assert list(nulls(definition(kind), kind)) == []
