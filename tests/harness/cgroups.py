"""Makes and removes cgroups; for nodes, and as a program at the end of what the warden guards.

In version 1 a cgroup is a folder in each hierarchy, in version 2 one folder. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
GONE_S = 10.0
# A group counts as a few programs beside those that are in none: one node's pods are many.
WEIGHTS = {"cpu.shares": "4096", "cpu.weight": "400"}


def hierarchies() -> list[Path]:
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    return [path for path in sorted(MOUNT.iterdir()) if path.is_dir() and not path.is_symlink()]


def make(name: str) -> None:
    """Makes `name` (a/b/c) everywhere, ready to take processes and children."""
    for top in hierarchies():
        folder = top
        for part in name.strip("/").split("/"):
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            inherit(parent, folder)


def inherit(parent: Path, folder: Path) -> None:
    """Version 1: a cpuset begins empty. Version 2: a parent's controllers must be handed down."""
    for file, weight in WEIGHTS.items():
        if (folder / file).exists():
            (folder / file).write_text(weight)
    for file in ("cpuset.mems", "cpuset.cpus"):
        if (folder / file).exists() and not (folder / "cgroup.controllers").exists():
            (folder / file).write_text((parent / file).read_text())
    with contextlib.suppress(OSError):
        controllers = (parent / "cgroup.controllers").read_text().split()
        handed = " ".join(f"+{controller}" for controller in controllers)
        (parent / "cgroup.subtree_control").write_text(handed)


def remove(name: str) -> None:
    """Removes `name` and all below; waits a little for processes that are about to end."""
    end = time.monotonic() + GONE_S
    tops = [top / name.strip("/") for top in hierarchies()]
    while tops := [top for top in tops if not remove_below(top)]:
        if time.monotonic() > end:
            raise TimeoutError(f"the cgroup {name} still has processes after {GONE_S:.0f} s")
        time.sleep(0.05)


def remove_below(top: Path) -> bool:
    with contextlib.suppress(OSError):
        for folder, _, _ in os.walk(top, topdown=False):
            os.rmdir(folder)
    return not top.exists()


def pids(name: str) -> dict[Path, list[int]]:
    """The processes in and below `name`, by cgroup."""
    tops = hierarchies()
    top = next((path for path in tops if path.name == "pids"), tops[0]) / name.strip("/")
    found = {}
    for folder, _, _ in os.walk(top):
        with contextlib.suppress(OSError):
            found[Path(folder)] = [
                int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()
            ]
    return found


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        remove(wanted)
