"""The examples: ranks ask for the fabric, and a `restricted` namespace admits their pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from epfabric_crds import names

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FILES = [EXAMPLES / "moe-job.yaml", *sorted((EXAMPLES / "jobs").glob("*.yaml"))]


def templates(value: Any) -> Iterator[dict[str, Any]]:
    """Every pod template, wherever it stands."""
    if isinstance(value, list):
        for item in value:
            yield from templates(item)
    elif isinstance(value, dict):
        if "containers" in value.get("spec", {}):
            yield value
        for item in value.values():
            yield from templates(item)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_ranks_of_an_example_take_part_and_are_admitted(path: Path) -> None:
    found = list(templates(list(yaml.safe_load_all(path.read_text()))))
    fabrics = [
        template.get("metadata", {}).get("annotations", {}).get(names.FABRIC_ANNOTATION)
        for template in found
    ]
    assert [fabric for fabric in fabrics if fabric] == ["moe"]
    for template in found:
        pod = template["spec"]["securityContext"]
        assert pod["runAsNonRoot"]
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in template["spec"]["containers"]:
            rights = container["securityContext"]
            assert rights == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
