"""Each bench in small: it runs, the data that it moved is right, its JSON has the form.

What `scale` stands on is in tests/contract/test_scale.py, since it needs a control plane.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from epfabric_bench.benches import BENCHES
from epfabric_bench.report import faults_of_form
from epfabric_bench.run import SMALL_S

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = SMALL_S + 40


def search_path() -> str:
    """PYTHONPATH of `make bench`."""
    found = re.search(r"PYTHONPATH=(\S+) \S+ -m epfabric_bench ", (ROOT / "Makefile").read_text())
    assert found is not None
    return found[1]


def test_make_bench_finds_what_the_bench_of_a_gpu_imports() -> None:
    imports = "import epfabric_bench.benches.gpu_fifo, harness.device, native.pod"
    done = subprocess.run(
        [sys.executable, "-c", imports],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": search_path()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_benches_of_a_gpu_need_no_package_of_the_cluster() -> None:
    """A machine with a GPU has torch and CUDA, and seldom what an operator needs."""
    without = (
        "import sys; sys.modules |= dict.fromkeys(('cryptography', 'grpc', 'kubernetes', 'yaml'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{without}; import epfabric_bench.__main__"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": search_path()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.timeout(BOUND_S + 20, func_only=True)
@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("name", [name for name, bench in BENCHES.items() if not bench.named])
def test_a_small_run_moves_the_right_data_and_writes_the_form(name: str, tmp_path: Path) -> None:
    if reason := BENCHES[name].missing():
        pytest.skip(reason)
    command = [sys.executable, "-m", "epfabric_bench", name, "--small", "--output", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": search_path()},
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / f"{name}.json").read_text())
    assert faults_of_form(found) == []
    assert found["bench"] == name
    assert all(result["verified"] for result in found["results"])
    for result in found["results"]:
        assert result["case"] in done.stdout
        assert result["metric"] in done.stdout
