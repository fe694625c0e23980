"""JSON schemas of every kind that the test cluster serves, for kubeconform; nothing is fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from chart.objects import As

LOCATION = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
REFERENCE = "#/components/schemas/"


def write(admin: As, folder: Path, wanted: set[tuple[str, str]]) -> str:
    """One file a kind of `wanted`, (apiVersion, kind); kubeconform's -schema-location.

    What the API server does not serve is left out: kubeconform then says so.
    """
    for version in sorted({version for version, _ in wanted}):
        path = f"apis/{version}" if "/" in version else f"api/{version}"
        served = json.loads(admin.run("get", "--raw", "/openapi/v3"))["paths"]
        if path not in served:
            continue
        every = json.loads(admin.run("get", "--raw", served[path]["serverRelativeURL"]))
        schemas: dict[str, Any] = every["components"]["schemas"]
        for name, schema in schemas.items():
            for kind in schema.get("x-kubernetes-group-version-kind", ()):
                full = "/".join(filter(None, (kind["group"], kind["version"])))
                if (full, kind["kind"]) in wanted:
                    names = kind["kind"].lower(), kind["group"].partition(".")[0], kind["version"]
                    file = folder / f"{'-'.join(filter(None, names))}.json"
                    file.write_text(json.dumps(standalone(name, schemas)))
    return str(folder / LOCATION)


def standalone(name: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema with all that it refers to; fields that it does not know are wrong."""
    parts: dict[str, Any] = {}
    todo = [name]
    while todo:
        one = todo.pop()
        if one not in parts:
            parts[one] = strict(schemas[one])
            todo += referred(schemas[one])
    return {"allOf": [{"$ref": REFERENCE + name}], "components": {"schemas": parts}}


def referred(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for one in schema for name in referred(one)]
    if not isinstance(schema, dict):
        return []
    here = schema.get("$ref")
    found = [here.removeprefix(REFERENCE)] if isinstance(here, str) else []
    return found + [name for one in schema.values() for name in referred(one)]


def strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(one) for key, one in schema.items()}
    if isinstance(made.get("properties"), dict) and "type" in made:
        made.setdefault("additionalProperties", False)
    if made.get("format") == "int-or-string":
        return {"type": ["integer", "string"]}
    return made
