"""Reads small files of sysfs and proc below an injectable root; used by the rest of topology."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from epfabric_agent.topology.addresses import addresses


def _affinity() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Machine:
    """Where to look; the defaults are this machine. Tests give a folder and their own answers."""

    root: Path = Path("/")
    affinity: Callable[[], frozenset[int]] = _affinity
    addresses: Callable[[], Mapping[str, tuple[str, ...]]] = field(default=addresses)

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def proc(self) -> Path:
        return self.root / "proc"


def text(path: Path) -> str:
    """A file's content without blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def number(path: Path, default: int) -> int:
    found = text(path)
    try:
        return int(found)
    except ValueError:
        return default


def names(path: Path) -> list[str]:
    """What a folder holds, in order; nothing where there is no such folder."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def link_name(path: Path) -> str:
    """The last part of where a symbolic link leads; empty where there is none."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""
