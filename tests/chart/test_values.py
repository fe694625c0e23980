"""values.yaml, its schema and the templates say the same, and nothing is rendered by chance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from chart.variants import render_all
from harness.helm import CHART

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
TEMPLATES = {
    str(path.relative_to(CHART)): path.read_text()
    for path in sorted((CHART / "templates").rglob("*"))
    if path.is_file()
}
# The parts of these are Kubernetes' own.
WHOLE = {
    *("operator.resources", "csi.resources", "slots.resources"),
    *("operator.nodeSelector", "csi.nodeSelector"),
    "injection.webhook.resources",
    *("dashboards.grafana.labels", "dashboards.perses.labels", "alerts.labels"),
}
CHANCE = r"\b(rand\w*|now|date\w*|ago|uuidv4|gen(CA|PrivateKey|SelfSigned)\w*|htpasswd|lookup)\b"


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    for part in [schema, *schema.get("allOf", [])]:
        if "$ref" in part:
            return {**SCHEMA["definitions"][part["$ref"].rpartition("/")[2]], **schema}
    return schema


def in_schema(schema: dict[str, Any], where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in resolved(schema).get("properties", {}).items():
        path = f"{where}.{name}".lstrip(".")
        yield path, one
        if path not in WHOLE:
            yield from in_schema(one, path)


def in_values(values: dict[str, Any], where: str = "") -> Iterator[str]:
    for name, one in values.items():
        path = f"{where}.{name}".lstrip(".")
        yield path
        if isinstance(one, dict) and path not in WHOLE:
            yield from in_values(one, path)


def used() -> set[str]:
    """Paths of values that templates read; an image is read whole, by a helper."""
    found = set()
    for text in TEMPLATES.values():
        found |= set(re.findall(r"\.Values\.([A-Za-z][\w.]*)", text))
    return found


def test_every_value_has_a_description_and_a_default() -> None:
    described = dict(in_schema(SCHEMA))
    assert not [path for path, one in described.items() if not one.get("description")]
    assert set(described) == set(in_values(VALUES))


def test_every_value_is_used_and_every_use_is_a_value() -> None:
    values, reads = set(in_values(VALUES)), used()
    assert reads - values == set()
    leaves = {path for path in values if not any(p.startswith(f"{path}.") for p in values)}
    unread = [p for p in leaves if not any(p == r or p.startswith(f"{r}.") for r in reads)]
    assert unread == []


def test_every_value_in_the_file_is_explained() -> None:
    """A comment stands above each, or above what it is part of and its name says the rest."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    top = [number for number, line in enumerate(lines) if re.match(r"[A-Za-z]", line)]
    for number, end in zip(top, [*top[1:], len(lines)], strict=True):
        above = lines[number - 1].startswith("#")
        inside = any(line.strip().startswith("#") for line in lines[number:end])
        assert above or inside, lines[number]


def objects(schema: Any, where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield where, schema
        for name, one in schema.items():
            yield from objects(one, f"{where}/{name}")


def test_the_schema_takes_no_unknown_key_anywhere() -> None:
    found = dict(objects(SCHEMA))
    assert len(found) > 10
    free = {where for where, one in found.items() if one.get("additionalProperties") is not False}
    # A parent chart has global values of its own.
    assert free == {"/properties/global", "/definitions/quantities", "/definitions/labels"}


@pytest.mark.parametrize("path", TEMPLATES)
def test_no_template_asks_for_time_chance_or_the_cluster(path: str) -> None:
    for action in re.findall(r"\{\{(?!-? ?/\*)(.*?)\}\}", TEMPLATES[path], re.DOTALL):
        code = re.sub(r'"[^"]*"', '""', action)
        assert not re.search(CHANCE, code), code


def test_two_renderings_are_equal() -> None:
    assert render_all() == render_all()
