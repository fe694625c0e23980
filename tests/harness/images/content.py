"""Which files of the tree go into which image, and the key that they make; used by the store."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path

from harness.build import uv
from harness.images.buildah import output

MEMBERS = ("crds", "operator", "agent", "kernels", "kernels/host")
EVERY_IMAGE = (
    "Dockerfile",
    "images/build.sh",
    "images/prepare.py",
    "pyproject.toml",
    "uv.lock",
    *(f"{member}/pyproject.toml" for member in MEMBERS),
)
# Of the lock only what the target installs counts: the tests' own packages change it often.
LOCKED = {"uv.lock", "pyproject.toml"}
INSTALLED = {
    "operator": ("--no-dev", "--package=epfabric-operator"),
    "agent": ("--no-dev", "--package=epfabric-agent"),
    "csi": ("--only-group=csi", "--package=epfabric-agent"),
    "client": ("--no-dev", "--package=epfabric", "--extra=host"),
}
FOLDERS = {
    "operator": ("crds", "operator"),
    "agent": ("crds", "agent", "kernels/epfabric"),
    "csi": ("agent/epfabric_agent",),
    "client": ("kernels/epfabric", "kernels/host", "examples"),
}


def files(root: Path, target: str) -> list[str]:
    """Paths of the target's files, sorted; caches and what git ignores are left out."""
    wanted = [*EVERY_IMAGE, *FOLDERS[target]]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *wanted],
        cwd=root,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        names = listed.stdout.decode().split("\0")
    else:  # not a clone
        names = [str(p.relative_to(root)) for name in wanted for p in walk(root / name)]
    return sorted({name for name in names if name and (root / name).is_file()})


def walk(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [p for p in path.rglob("*") if not re.search(r"__pycache__|\.egg-info|/build/", str(p))]


def requirements(root: Path, target: str) -> str:
    """The target's packages of others by version and digest, as the lock has them."""
    options = ["--frozen", "--quiet", "--no-header", "--no-annotate", "--no-emit-workspace"]
    return output([str(uv()), "export", "--directory", str(root), *options, *INSTALLED[target]])


def key(root: Path, names: list[str], more: str) -> str:
    """A digest of names, contents and of `more`: requirements, base, reference."""
    digest = hashlib.sha256(more.encode())
    for name in names:
        if name in LOCKED:
            continue
        data = (root / name).read_bytes()
        digest.update(f"\0{name}\0{executable(root / name)}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()[:16]


def executable(path: Path) -> bool:
    return os.access(path, os.X_OK)


def copy(root: Path, names: list[str], folder: Path) -> None:
    """The build's context: these files alone, whatever the umask of the checkout was."""
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((root / name).read_bytes())
        target.chmod(0o755 if executable(root / name) else 0o644)
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
