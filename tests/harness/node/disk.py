"""Disks on which containerd has images already, made once for a set of images; for `site`.

A node begins with a copy. Layers and blobs, which nobody writes again, are hard links to the cache
where that is possible; containerd's databases are copies.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from harness import build
from harness.process import HarnessError

IMAGES = "var-lib/containerd"  # in a node's disk
KEPT = 3


def prepared(archives: Sequence[Path]) -> Path:
    """Where the cached disk with these images is, or will be; their paths tell their content."""
    named = [f"{archive.parent.name}/{archive.name}" for archive in archives]
    programs = build.programs("containerd")["containerd"].parent.name
    key = hashlib.sha256("\n".join([programs, *named]).encode()).hexdigest()[:16]
    return build.cache() / "nodes" / key


def begin(disk: Path, cached: Path) -> bool:
    """Gives a new disk what the cached one holds; False where there is none."""
    with lock():
        if not cached.is_dir():
            return False
        copy(cached, disk / IMAGES)
        cached.touch()
    return True


def keep(disk: Path, cached: Path) -> None:
    """Puts a copy of what containerd, which must have ended, has on the disk into the cache."""
    with lock():
        if cached.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix=".new-", dir=cached.parent) as folder:
            copy(disk / IMAGES, Path(folder, "made"))
            Path(folder, "made").rename(cached)
        found = [path for path in cached.parent.iterdir() if not path.name.startswith(".")]
        folders = [path for path in found if path.is_dir()]
        for old in sorted(folders, key=lambda path: path.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    linked = subprocess.run(
        ["cp", "--archive", "--link", source, target], capture_output=True, text=True
    )
    if linked.returncode != 0:  # another file system
        shutil.rmtree(target, ignore_errors=True)
        done = subprocess.run(["cp", "--archive", source, target], capture_output=True, text=True)
        if done.returncode != 0:
            raise HarnessError(f"cannot copy {source}: {done.stderr.strip()[-500:]}")
        return
    for database in target.glob("*/*.db"):
        contents = database.read_bytes()
        database.unlink()
        database.write_bytes(contents)
        database.chmod(0o644)


def lock() -> AbstractContextManager[None]:
    folder = build.cache() / "nodes"
    folder.mkdir(parents=True, exist_ok=True)
    return build.locked(folder / ".lock", "another start of nodes")
