"""What a result has to say about the machine that it was measured on; no name and no path of it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def describe() -> dict[str, Any]:
    """Taken before a bench; `finish()` adds what is known after it."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "compiler": first_line("g++", "--version"),
        "gpu": first_line("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "epfabric": epfabric_version(),
        "libfabric": first_line("pkg-config", "--modversion", "libfabric"),
        "commit": commit(),
        "load_before": load(),
    }


def finish(machine: dict[str, Any]) -> dict[str, Any]:
    return {**machine, "load_after": load()}


def epfabric_version() -> str:
    """Empty where the sources are used without being installed."""
    try:
        return version("epfabric-agent")
    except PackageNotFoundError:
        return ""


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def commit() -> str:
    """The commit, with a + where files differ from it; empty outside a checkout."""
    name = first_line("git", "rev-parse", "--short=12", "HEAD")
    return name + "+" if name and first_line("git", "status", "--porcelain", "-uno") else name


def first_line(*command: str) -> str:
    """Of what a command prints; empty where it fails."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return ""
    return (done.stdout.splitlines() or [""])[0].strip() if done.returncode == 0 else ""
