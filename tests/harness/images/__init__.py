"""EPFabric's images, built without a daemon, once a content; for `make images`, tests and the demo.

`archives()` gives the OCI archives, `reference()` the name by which pods ask for an image.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from harness.images import cross, store
from harness.images.store import ROOT, Image

TARGETS = ("operator", "agent", "csi", "client")
REGISTRY = "localhost"
BUILDERS = {"amd64": store.build, "arm64": cross.build}


def version() -> str:
    """The version of what is in the images, and so their tag."""
    text = (ROOT / "agent" / "pyproject.toml").read_text()
    return str(tomllib.loads(text)["project"]["version"])


def reference(target: str) -> str:
    return f"{REGISTRY}/epfabric-{target}:{version()}"


def images(targets: Sequence[str] = TARGETS, architecture: str = "amd64") -> dict[str, Image]:
    """Builds what is not in the cache; raises HarnessError with the end of a build's output."""
    build = BUILDERS[architecture]
    return {target: build(target, reference(target)) for target in targets}


def archives(targets: Sequence[str] = TARGETS) -> dict[str, Path]:
    """The OCI archive of each image; each carries its reference as its name."""
    return {target: image.archive for target, image in images(targets).items()}


def digest(target: str) -> str:
    """The digest of the image's manifest, `sha256:…`."""
    return images((target,))[target].digest
