"""The packaged CRD YAML: its paths, schemas and structural checks; used by tests and manifest mode.

An API server checks these schemas itself. Without Kubernetes `problems` gives the same answers,
but for the rules in CEL.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

import yaml

FILES = {
    "EPFabric": "epfabrics.yaml",
    "EPFabricNode": "epfabricnodes.yaml",
    "EPGroup": "epgroups.yaml",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def definition_text(kind: str) -> str:
    return files("epfabric_crds").joinpath("definitions", FILES[kind]).read_text()


@functools.cache
def definition(kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition of `kind`."""
    loaded: dict[str, Any] = yaml.safe_load(definition_text(kind))
    return loaded


def schema(kind: str) -> dict[str, Any]:
    """The structural schema of `kind`."""
    found: dict[str, Any] = definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def problems(kind: str, data: Any) -> list[str]:
    """What the structural schema has against `data`, one sentence a fault; empty when it fits."""
    return list(_check(schema(kind), data, ""))


def _check(rule: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
    wanted = rule["type"]
    if not _is_of(wanted, value):
        yield f"{where or 'the object'} must be of type {wanted}, not {value!r:.60}"
    elif wanted == "object":
        yield from _check_object(rule, value, where)
    elif wanted == "array":
        if len(value) > rule.get("maxItems", len(value)):
            yield f"{where} has {len(value)} items; at most {rule['maxItems']} are allowed"
        for index, item in enumerate(value):
            yield from _check(rule["items"], item, f"{where}[{index}]")
    else:
        yield from _check_scalar(rule, value, where)


def _is_of(wanted: str, value: Any) -> bool:
    # bool is a subclass of int in Python, but no integer in JSON.
    return isinstance(value, _TYPES[wanted]) and (wanted == "boolean" or type(value) is not bool)


def _check_object(rule: Mapping[str, Any], value: Mapping[str, Any], where: str) -> Iterator[str]:
    known = rule.get("properties")
    for name in rule.get("required", ()):
        if name not in value:
            yield f"{_join(where, name)} is required"
    if len(value) > rule.get("maxProperties", len(value)):
        yield f"{where} has {len(value)} entries; at most {rule['maxProperties']} are allowed"
    for name, item in value.items():
        if known is not None and name in known:
            if item is not None:
                yield from _check(known[name], item, _join(where, name))
        elif "additionalProperties" in rule:
            yield from _check(rule["additionalProperties"], item, f"{where}[{name}]")
        elif known is not None:
            yield f"{_join(where, name)} is not a field"


def _check_scalar(rule: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
    if "enum" in rule and value not in rule["enum"]:
        yield f"{where} is {value!r}; allowed are {', '.join(map(str, rule['enum']))}"
    if "minimum" in rule and value < rule["minimum"]:
        yield f"{where} is {value}; it must be at least {rule['minimum']}"
    if "maximum" in rule and value > rule["maximum"]:
        yield f"{where} is {value}; it must be at most {rule['maximum']}"
    if len(str(value)) > rule.get("maxLength", len(str(value))):
        yield f"{where} is longer than {rule['maxLength']} characters"
    if len(str(value)) < rule.get("minLength", 0):
        yield f"{where} must not be empty"
    if "pattern" in rule and not re.search(rule["pattern"], value):
        yield f"{where} is {value!r}; it must match {rule['pattern']}"


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
