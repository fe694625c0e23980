"""Builds the C++ tests of the native core, plain and under sanitizers, and runs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# TSan cannot see into libfabric: under it the provider of twin_provider.cc stands for the network.
KINDS = {"plain": "", "asan": "address,undefined", "tsan": "thread"}
# The protocols' models and their walks have one thread, and take ten times as long under TSan.
LEFT_OUT = {"tsan": "/explorer/"}


@pytest.mark.timeout(2000)  # it compiles where nothing is cached
@pytest.mark.parametrize("kind", KINDS)
def test_cpp(kind: str) -> None:
    folder = ROOT / "build" / "native-tests" / kind
    source = Path(__file__).parent
    configure = ["cmake", "-S", str(source), "-B", str(folder), "-G", "Ninja"]
    configure += [f"-DSANITIZE={KINDS[kind]}", f"-DLEFT_OUT={LEFT_OUT.get(kind, '')}"]
    for command in (configure, ["cmake", "--build", str(folder)]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=1600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    options = {"TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1"}
    done = subprocess.run(
        [folder / "native_tests"],
        capture_output=True,
        text=True,
        timeout=900,  # minutes where the machine is busy with others
        env={**os.environ, **options},
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
