"""The module's types say what the compiled module is."""

from __future__ import annotations

import subprocess
import sys


def test_the_stub_fits_the_compiled_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "epfabric_agent._native"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
