"""Puts arm64's native code into a copy of an amd64 image's Python environment; for cross.py.

Packages of others come as the lock's wheels for arm64, our own modules cross-built; everything
that is Python alone stays as it is, compiled modules too.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from harness.build import uv
from harness.images.buildah import run
from harness.process import HarnessError

PLATFORM = "aarch64-unknown-linux-gnu"
NATIVE = "Root-Is-Purelib: false"
NOISE = ("uv_cache.json", "direct_url.json")


def site_of(root: Path) -> Path:
    return next(root.glob("opt/epfabric/lib/python3.*/site-packages"))


def cross(site: Path, requirements: str, modules: Iterable[Path], work: Path) -> None:
    """`requirements`: the lock's, with digests. `modules`: ours, as arm64 names them.

    Raises HarnessError where a package has no wheel for arm64.
    """
    native = [i for i in sorted(site.glob("*.dist-info")) if NATIVE in text(i / "WHEEL")]
    ours = [info for info in native if info.name.startswith("epfabric_")]
    wanted = [pinned(requirements, info) for info in native if info not in ours]
    if wanted:
        version = site.parent.name.removeprefix("python")
        listed = work / "requirements.txt"
        listed.write_text("\n".join(wanted) + "\n")
        options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--link-mode=copy"]
        options += [f"--python-platform={PLATFORM}", f"--python-version={version}"]
        command = [str(uv()), "pip", "install", "--quiet", *options, f"--target={work / 'site'}"]
        run([*command, "-r", str(listed)], "fetching wheels for arm64")
        for info in native:
            if info not in ours:
                swap(site, work / "site", info.name)
    for info in ours:
        exchange(site, info, modules)


def text(path: Path) -> str:
    return path.read_text() if path.is_file() else ""


def pinned(requirements: str, info: Path) -> str:
    """The lock's lines for one distribution."""
    name, version = info.name.removesuffix(".dist-info").split("-")
    spelt = re.sub(r"[-_.]+", "[-_.]+", name)
    found = re.search(rf"(?mi)^{spelt}=={re.escape(version)}\b.*(\n    --hash.*)+", requirements)
    if not found:
        raise HarnessError(f"uv.lock has no {name} {version}, which the image for amd64 holds")
    return found[0]


def swap(site: Path, new: Path, info: str) -> None:
    """Takes the files of one distribution from `new` instead."""
    before = (site / info / "RECORD").read_text().splitlines()
    after = (new / info / "RECORD").read_text().splitlines()
    programs = [line for line in before if line.startswith("../")]
    for line in before:
        path = site / line.partition(",")[0]
        if line in programs or not path.is_file():
            continue
        twin = new / line.partition(",")[0]
        if path.suffix == ".py" and not (twin.is_file() and same(path, twin)):
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.cpython-*.pyc"):
                compiled.unlink()
        path.unlink()
    kept = [
        x
        for x in after
        if not x.startswith("bin/") and x.partition(",")[0].split("/")[-1] not in NOISE
    ]
    for line in kept:
        name = line.partition(",")[0]
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(new / name, site / name)
        (site / name).chmod(0o755 if (new / name).stat().st_mode & 0o100 else 0o644)
    (site / info / "RECORD").write_text("\n".join(sorted([*programs, *kept])) + "\n")


def same(one: Path, other: Path) -> bool:
    return one.read_bytes() == other.read_bytes()


def exchange(site: Path, info: Path, modules: Iterable[Path]) -> None:
    """Our own distribution: its one module, and what its records say of it."""
    record = info / "RECORD"
    lines = record.read_text().splitlines()
    built = {module.name.partition(".")[0]: module for module in modules}
    for line in [line for line in lines if line.partition(",")[0].endswith(".so")]:
        old = site / line.partition(",")[0]
        module = built[old.name.partition(".")[0]]
        old.unlink()
        shutil.copyfile(module, old.with_name(module.name))
        old.with_name(module.name).chmod(0o755)
        lines[lines.index(line)] = entry(site, old.with_name(module.name))
    wheel = info / "WHEEL"
    wheel.write_text(wheel.read_text().replace("linux_x86_64", "linux_aarch64"))
    lines = [entry(site, wheel) if x.startswith(f"{info.name}/WHEEL,") else x for x in lines]
    record.write_text("\n".join(sorted(lines)) + "\n")


def entry(site: Path, path: Path) -> str:
    """A line of RECORD, by the wheel format's rules."""
    data = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{path.relative_to(site)},sha256={digest},{len(data)}"
