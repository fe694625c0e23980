"""What runs in the VM, compiled on this machine: native code would take minutes in there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness import vm

ROOT = Path(__file__).resolve().parents[2]
RAILS = Path(__file__).with_name("rails.sh")
BUILD_S = 900
LIMIT_S = 900.0  # minutes where the machine is busy with others


def rdma_tests() -> Path:
    """The C++ tests of native/, built now. Raises AssertionError with what the compiler said."""
    folder = ROOT / "build" / "rdma-tests"
    source = Path(__file__).parent / "native"
    for command in (
        ["cmake", "-S", str(source), "-B", str(folder), "-G", "Ninja"],
        ["cmake", "--build", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "rdma_tests"


def on_rails(command: str, **environment: str) -> tuple[int, str]:
    """Runs a shell command in a guest with the two rails of rails.sh. Raises HarnessError."""
    paths = os.environ["PATH"] + ":/usr/sbin:/sbin"
    settings = {"PATH": paths, "HOME": "/root", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return vm.run(["bash", "-c", f". {RAILS}\n{command}"], settings, LIMIT_S)
