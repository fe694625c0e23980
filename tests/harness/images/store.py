"""The images that were built: one folder a target and content, published by a rename.

`$EPFABRIC_CACHE/images/<target>-<key>` holds image.tar (an OCI archive), sbom.cdx.json and digest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from harness.build import cache, locked, say
from harness.images import content, debian, host, sbom
from harness.images.buildah import Buildah
from harness.process import HarnessError

ROOT = Path(__file__).resolve().parents[3]
PREPARE = ROOT / "images" / "prepare.py"
# Layers of earlier builds stay, so that a change of one part builds that part; past this all go.
MAX_STORE_BYTES = 16 << 30
DU_S = 120.0
KEPT = 6  # images of a target
BUILD_BYTES = 4 << 30


@dataclass(frozen=True)
class Image:
    """One image in the cache."""

    target: str
    reference: str
    folder: Path

    @property
    def archive(self) -> Path:
        return self.folder / "image.tar"

    @property
    def bill(self) -> Path:
        return self.folder / "sbom.cdx.json"

    @property
    def digest(self) -> str:
        return (self.folder / "digest").read_text().strip()

    @property
    def digest_again(self) -> str:
        """Of a second build of the same content."""
        return (self.folder / "digest-again").read_text().strip()


def build(target: str, reference: str) -> Image:
    """The image of a target, built if need be. Raises HarnessError."""
    if target not in content.FOLDERS:
        raise HarnessError(f"no image {target!r}; there are {', '.join(content.FOLDERS)}")
    names = content.files(ROOT, target)
    more = [reference, debian.base_key(PREPARE), content.requirements(ROOT, target)]
    key = content.key(ROOT, names, "\n".join(more))
    image = Image(target, reference, cache() / "images" / f"{target}-{key}")
    if not image.folder.is_dir():
        if os.geteuid() != 0:
            raise HarnessError("only root can build images: their base is a Debian tree")
        with locked(cache() / "images" / "store.lock", "another build of images"):
            if not image.folder.is_dir():
                make(image, names)
    return used(image)


def used(image: Image) -> Image:
    """Says so to prune(), which keeps what was used last."""
    os.utime(image.folder)
    return image


def make(image: Image, names: list[str]) -> None:
    """Builds it, and again without what the first build left, for a second digest."""
    begun = time.monotonic()
    sweep(cache() / "images")
    base = debian.base(PREPARE)
    say(f"building the image {image.target} (about 3 min on two cores the first time)")
    with store() as buildah, tempfile.TemporaryDirectory(dir=buildah.folder / "tmp") as folder:
        context, settings, result = (Path(folder, name) for name in ("context", "host", "result"))
        for path in (context, settings, result):
            path.mkdir()
        content.copy(ROOT, names, context)
        host.write(settings)
        archive(buildah, image, imported(buildah, base), context, settings, result / "image.tar")
        digest = manifest_digest(result / "image.tar")
        (result / "digest").write_text(digest + "\n")
        again = Path(folder, "again.tar")
        archive(buildah, image, imported(buildah, base), context, settings, again, "AGAIN=1")
        (result / "digest-again").write_text(manifest_digest(again) + "\n")
        with mounted(buildah, image.reference) as (root, _):
            (result / "sbom.cdx.json").write_text(sbom.of(root, image.reference, digest))
        result.chmod(0o755)
        result.rename(image.folder)
    prune(image.folder.parent)
    say(f"{image.reference} built in {time.monotonic() - begun:.0f} s")


def archive(
    buildah: Buildah, image: Image, base: str, context: Path, settings: Path, to: Path, *more: str
) -> None:
    """Builds from `context` and writes the OCI archive."""
    buildah(
        "bud",
        "--layers",
        "--timestamp=0",
        *(f"--build-arg={argument}" for argument in (f"BASE={base}", *more)),
        f"--volume={settings}:{host.SEEN_AS}:ro",
        f"--volume={buildah.folder / 'cache'}:{host.CACHE_SEEN_AS}",
        f"--target={image.target}",
        f"--tag={image.reference}",
        str(context),
        what=f"building the image {image.target}",
    )
    buildah("push", "--quiet", image.reference, f"oci-archive:{to}:{image.reference}")


@contextmanager
def mounted(buildah: Buildah, name: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """An image's root folder, and what buildah tells of it."""
    made = new_container(buildah, name)
    try:
        told = json.loads(buildah("inspect", "--type", "container", made))
        yield Path(buildah("mount", made)), told
        buildah("umount", made)
    finally:
        buildah("rm", made)


def imported(buildah: Buildah, base: Path) -> str:
    """The base as an image in the store; its one layer is shared by all of ours."""
    name = f"localhost/{base.stem}:latest"
    if not buildah.has(name):
        container = buildah("from", "scratch")
        buildah("add", "--quiet", container, str(base), "/")
        buildah("commit", "--quiet", "--timestamp=0", "--rm", container, name)
    return name


@contextmanager
def store() -> Iterator[Buildah]:
    folder = cache() / "images" / "buildah"
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < BUILD_BYTES:
        say(f"less than {BUILD_BYTES >> 30} GiB are free beside {folder}: a build may fail")
    buildah = Buildah(folder, debian.has_overlay(folder))
    drop_abandoned(buildah)
    if size(folder) > MAX_STORE_BYTES:
        say("dropping the layers of earlier builds")
        try:
            buildah("rmi", "--all")
        except HarnessError:  # somebody runs one of them
            say("  some are in use and stay")
    yield buildah


def sweep(folder: Path) -> None:
    """Removes what killed builds left; the caller holds the lock, so no build goes on."""
    for path in [*folder.glob(".base-*"), *folder.glob("buildah/tmp/tmp*")]:
        shutil.rmtree(path, ignore_errors=True)


def prune(folder: Path) -> None:
    """Keeps the KEPT images of each target, and as many bases, that were used last."""
    kinds = (*content.FOLDERS, "base")
    for kind in (*kinds, *(f"arm64-{kind}" for kind in kinds)):
        found = sorted(folder.glob(f"{kind}-*"), key=lambda p: p.stat().st_mtime, reverse=True)
        for path in found[KEPT:]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def new_container(buildah: Buildah, source: str) -> str:
    """A container named after this process, so that another can tell when nobody uses it."""
    return buildah("from", "--pull-never", f"--name=epfabric-{os.getpid()}-{uuid4().hex}", source)


def drop_abandoned(buildah: Buildah) -> None:
    """Removes the containers of processes that were killed."""
    for name in buildah("containers", "--noheading", "--format={{.ContainerName}}").split():
        found = re.fullmatch(r"epfabric-(\d+)-\w+", name)
        if found and not Path("/proc", found[1]).exists():
            buildah("rm", name)


def size(folder: Path) -> int:
    """Bytes on disk below `folder`."""
    du = ["du", "--summarize", "--one-file-system", "--block-size=1", str(folder)]
    # It fails, and counts the rest, where another build has just removed something.
    done = subprocess.run(du, capture_output=True, text=True, timeout=DU_S, check=False)
    if not done.stdout:
        raise HarnessError(f"{' '.join(du)} failed: {done.stderr}")
    return int(done.stdout.split()[0])


def manifest_digest(path: Path) -> str:
    """The digest of the one manifest in an OCI archive."""
    with tarfile.open(path) as tar:
        index = tar.extractfile("index.json")
        if index is None:
            raise HarnessError(f"{path} is no OCI archive: it has no index.json")
        (manifest,) = json.load(index)["manifests"]
    return str(manifest["digest"])
