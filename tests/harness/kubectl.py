"""Runs kubectl (from its Python package) against a kubeconfig; used by the cluster and the demo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.process import HarnessError

PROGRAM = Path(sys.executable).with_name("kubectl")


def kubectl(
    kubeconfig: Path, *args: str, stdin: str | None = None, timeout_s: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Runs it and returns what it printed and its exit code, whatever that is."""
    if not PROGRAM.exists():
        raise HarnessError(f"no {PROGRAM}: run `bash tests/harness/bootstrap.sh`")
    return subprocess.run(
        [str(PROGRAM), f"--kubeconfig={kubeconfig}", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
