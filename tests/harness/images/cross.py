"""Images for arm64, made on amd64 without running a program of theirs; for `harness.images`.

Each is the twin of the image for amd64: the same files, but where these hold machine code. Debian's
packages, wheels and our own modules come as built for arm64.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.build import cache, locked, say
from harness.images import content, crossdebian, crosspython, sbom, store
from harness.images.buildah import Buildah, output
from harness.images.crossdebian import ARCHITECTURE
from harness.images.store import ROOT, Image
from harness.process import HarnessError

AARCH64 = 183  # e_machine
HERE = Path(__file__).parent
SOURCES = ("cross.py", "crossdebian.py", "crosspython.py")


def build(target: str, reference: str) -> Image:
    """The image of a target for arm64; builds it, and the one for amd64, if need be."""
    from harness import arm64  # itself a user of this package

    amd64 = store.build(target, reference)
    native = arm64.built()
    digest = hashlib.sha256(f"{amd64.digest} {native.folder.name}".encode())
    for name in SOURCES:
        digest.update((HERE / name).read_bytes())
    name = f"{ARCHITECTURE}-{target}-{digest.hexdigest()[:16]}"
    image = Image(target, reference, cache() / "images" / name)
    if not image.folder.is_dir():
        with locked(cache() / "images" / "store.lock", "another build of images"):
            if not image.folder.is_dir():
                make(image, amd64, sorted(native.folder.glob("_*.so")))
    return store.used(image)


def make(image: Image, amd64: Image, modules: list[Path]) -> None:
    begun = time.monotonic()
    say(f"building the image {image.target} for {ARCHITECTURE} (about a minute)")
    with (
        store.store() as buildah,
        tempfile.TemporaryDirectory(dir=buildah.folder / "tmp") as folder,
        store.mounted(buildah, f"oci-archive:{amd64.archive}") as (root, told),
    ):
        work, result = Path(folder, "work"), Path(folder, "result")
        for path in (work, result):
            path.mkdir()
        container = store.new_container(buildah, store.imported(buildah, base(root, work)))
        made = Path(buildah("mount", container))
        fill(root, made, image.target, modules, work)
        if wrong := list(other_code(made)):
            raise HarnessError(f"not for {ARCHITECTURE}: {wrong[:20]}")
        commit(buildah, container, told, image.reference, result / "image.tar")
        digest = store.manifest_digest(result / "image.tar")
        (result / "digest").write_text(digest + "\n")
        (result / "sbom.cdx.json").write_text(sbom.of(made, image.reference, digest))
        buildah("umount", container)
        buildah("rm", container)
        result.chmod(0o755)
        result.rename(image.folder)
    store.prune(image.folder.parent)
    say(f"{image.reference} for {ARCHITECTURE} built in {time.monotonic() - begun:.0f} s")


def base(amd64: Path, work: Path) -> Path:
    """Debian's part of an image as a tar archive in the cache."""
    digest = hashlib.sha256((HERE / "crossdebian.py").read_bytes())
    digest.update(repr(sorted(crossdebian.packages(amd64).items())).encode())
    archive = cache() / "images" / f"{ARCHITECTURE}-base-{digest.hexdigest()[:16]}.tar"
    if not archive.is_file():
        say(f"unpacking Debian's packages for {ARCHITECTURE}")
        crossdebian.unpack(amd64, work / "debian")
        packed = work / "base.tar"
        options = ["--sort=name", "--mtime=@0", "--numeric-owner", "--one-file-system"]
        output(["tar", "-C", str(work / "debian"), *options, "-cf", str(packed), "."])
        packed.rename(archive)
    return archive


def fill(amd64: Path, made: Path, target: str, modules: list[Path], work: Path) -> None:
    """Our own part and what it needs of Python."""
    names = [
        f"/{path.relative_to(amd64)}" for path in crossdebian.everything(amd64 / "opt/epfabric")
    ]
    crossdebian.copy(amd64, ["/opt/epfabric", *names], made)
    requirements = content.requirements(ROOT, target)
    crosspython.cross(crosspython.site_of(made), requirements, modules, work)


def other_code(root: Path) -> Iterator[str]:
    """Files with machine code for something else."""
    for path in crossdebian.everything(root):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            head = file.read(20)
        if head[:4] == b"\x7fELF" and struct.unpack("<H", head[18:20])[0] != AARCH64:
            yield str(path.relative_to(root))


def commit(
    buildah: Buildah, container: str, told: dict[str, Any], reference: str, to: Path
) -> None:
    """Gives the container the configuration of the image for amd64 and writes the archive."""
    given = told["OCIv1"]["config"]
    options = [f"--env={variable}" for variable in given.get("Env", ())]
    if entry := given.get("Entrypoint"):
        options += [f"--entrypoint={json.dumps(entry)}"]
    if user := given.get("User"):
        options += [f"--user={user}"]
    buildah("config", f"--arch={ARCHITECTURE}", "--variant=v8", *options, container)
    name = f"localhost/epfabric-{ARCHITECTURE}-{to.parent.parent.name}"
    buildah("commit", "--quiet", "--timestamp=0", container, name)
    buildah("push", "--quiet", name, f"oci-archive:{to}:{reference}")
    buildah("rmi", name)
