"""What is in the images: the same at every build, listed, and nothing of the machine that built."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from harness import images
from harness.images import debian, host, sbom
from harness.images.container import Unpacked
from harness.images.store import Image
from images.leftovers import leftovers

TARGETS = images.TARGETS
SETTINGS = ("etc", "root", "opt/epfabric")
MAX_MB = {"operator": 100, "agent": 160, "csi": 65, "client": 85}


@pytest.mark.parametrize("target", TARGETS)
def test_second_build_of_the_same_content_gives_the_same_digest(
    target: str, built: dict[str, Image]
) -> None:
    assert built[target].digest_again == built[target].digest


def test_third_call_builds_nothing(built: dict[str, Image]) -> None:
    made = {target: image.archive.stat().st_ctime_ns for target, image in built.items()}
    assert images.archives() == {target: image.archive for target, image in built.items()}
    assert {t: image.archive.stat().st_ctime_ns for t, image in built.items()} == made


@pytest.mark.parametrize("target", TARGETS)
def test_image_is_small(target: str, built: dict[str, Image]) -> None:
    assert built[target].archive.stat().st_size < MAX_MB[target] * 1e6


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_of_the_build_or_its_machine_stays(
    target: str, roots: dict[str, Unpacked], tmp_path: Path
) -> None:
    image = roots[target]
    assert leftovers(image.root) == []
    host.write(tmp_path)
    words = told(tmp_path)
    found = []
    for name in SETTINGS:
        for path in (image.root / name).rglob("*"):
            if path.is_file() and not path.is_symlink() and path.suffix != ".so":
                data = path.read_bytes()
                found += [(str(path), word) for word in words if word.encode() in data]
    assert found == []
    variables = {line.partition("=")[0] for line in image.configuration["Env"]}
    assert variables == {"PATH"}


def told(settings: Path) -> set[str]:
    """What a build was told that would give the machine away: hosts, paths, certificates."""
    words = {f"{host.SEEN_AS}/env", f"{host.CACHE_SEEN_AS}/", *debian_hosts()}
    for value in re.findall(r"(?m)^export \w+=(.*)$", (settings / "env").read_text()):
        if "://" in value:
            words.add(urlsplit(value.strip("'")).netloc)
    return {word for word in words if word}


def debian_hosts() -> set[str]:
    return {urlsplit(source.uri).netloc for source in debian.host_sources()}


@pytest.mark.parametrize("target", TARGETS)
def test_list_of_contents_names_what_is_there(
    target: str, built: dict[str, Image], roots: dict[str, Unpacked]
) -> None:
    image = built[target]
    listed = json.loads(image.bill.read_text())
    assert listed["bomFormat"] == "CycloneDX"
    subject = listed["metadata"]["component"]
    assert subject["hashes"] == [
        {"alg": "SHA-256", "content": image.digest.removeprefix("sha256:")}
    ]
    found = {(part["name"], part["version"]) for part in listed["components"]}
    own = {"operator": "epfabric-operator", "client": "epfabric"}.get(target, "epfabric-agent")
    assert (own, images.version()) in found
    status = (roots[target].root / "var/lib/dpkg/status").read_text()
    stanzas = [part for part in status.split("\n\n") if "\nStatus: install ok installed" in part]
    packages = {
        (re.findall(r"(?m)^Package: (.+)$", one)[0], re.findall(r"(?m)^Version: (.+)$", one)[0])
        for one in stanzas
    }
    assert len(packages) > 80
    assert packages <= found
    assert image.bill.read_text() == sbom.of(roots[target].root, image.reference, image.digest)
