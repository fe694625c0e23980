"""The native code for arm64: cross-built, and run under qemu-user with pages of 64 KiB.

Emulated: the instruction set and the page size. Not emulated: arm64's weak memory order, since
qemu's threads run on this machine's stronger one (docs/fifo.md argues the order).
"""

from __future__ import annotations

import os
import subprocess

import pytest
from harness import arm64
from harness.arm64 import Built

MODULES = """
import os, sys
sys.path.insert(0, sys.argv[1])
import _native, _producer
print(os.uname().machine, os.sysconf("SC_PAGE_SIZE"), _producer.Ring.__name__)
"""


pytestmark = pytest.mark.timeout(1200)  # it builds where nothing is cached


@pytest.fixture(scope="module")
def built() -> Built:
    return arm64.built()


def emulated(command: list[str], timeout_s: float) -> str:
    fewer = {**os.environ, "EPFABRIC_OPERATIONS": "50000"}  # of random ones, than at full speed
    done = subprocess.run(
        command, env=fewer, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_native_tests_pass_on_arm64_with_large_pages(built: Built) -> None:
    said = emulated(built.command(built.folder / "native_tests"), 600)
    print(said)  # with the seeds
    assert "| 0 failed" in said
    assert "test cases:   0" not in said


def test_python_modules_load_on_arm64_with_large_pages(built: Built) -> None:
    said = emulated(built.command(built.python, "-c", MODULES, str(built.folder)), 120)
    assert said.split() == ["aarch64", str(arm64.PAGE_BYTES), "Ring"]
