"""The chart and the examples name our images and no other, with registry and digest as asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import helm, images

ROOT = Path(__file__).resolve().parents[2]
OFFLINE = {"injection": {"policyVersion": "v1"}}
DIGEST = "sha256:" + "ab" * 32


def named(values: dict[str, Any]) -> dict[str, str]:
    """Image of each container of the rendered chart, and the one that the operator gives agents."""
    text = helm.template({**OFFLINE, **values}, "epfabric-system")
    found: dict[str, str] = {}
    for one in yaml.safe_load_all(text):
        pod = pod_of(one or {})
        for container in [*pod.get("containers", ()), *pod.get("initContainers", ())]:
            found[f"{one['metadata']['name']}/{container['name']}"] = container["image"]
            for variable in container.get("env", ()):
                if variable["name"] == "EPFABRIC_AGENT_IMAGE":
                    found["agent"] = variable["value"]
    assert found
    return found


def pod_of(one: dict[str, Any]) -> dict[str, Any]:
    spec = one.get("spec", {})
    if one.get("kind") == "Pod":
        return dict(spec)
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    return dict(spec.get("template", {}).get("spec", {}))


def test_chart_with_our_registry_names_what_make_images_builds() -> None:
    built = {images.reference(target) for target in images.TARGETS}
    found = named({"global": {"registry": "localhost"}})
    assert set(found.values()) <= built
    assert images.reference("agent") == found["agent"]
    assert images.reference("csi") == found["epfabric-csi/csi"]


@pytest.mark.parametrize("registry", ["registry.example:5000", "registry.example:5000/team/"])
def test_registry_goes_before_every_image(registry: str) -> None:
    for image in named({"global": {"registry": registry}}).values():
        assert image.startswith(registry.rstrip("/") + "/epfabric-"), image


def test_digest_takes_the_place_of_the_tag() -> None:
    own = {"digest": DIGEST, "tag": "9"}
    values = {part: {"repository": f"x/{part}", **own} for part in ("operator", "agent", "csi")}
    assert set(named({"images": values}).values()) == {f"x/{part}@{DIGEST}" for part in values}


def test_examples_name_no_image_but_ours() -> None:
    found = []
    for path in (ROOT / "examples").rglob("*.yaml"):
        for one in yaml.safe_load_all(path.read_text()):
            found += [(path.name, image) for image in all_images(one)]
    assert found
    own = {f"epfabric-{target}:{images.version()}" for target in images.TARGETS}
    assert [pair for pair in found if pair[1] not in own] == []


def all_images(value: Any) -> list[str]:
    """Every value of a key `image`, wherever a kind keeps its pods."""
    if isinstance(value, list):
        return [image for one in value for image in all_images(one)]
    if not isinstance(value, dict):
        return []
    own = [value["image"]] if isinstance(value.get("image"), str) else []
    return own + [image for one in value.values() for image in all_images(one)]
