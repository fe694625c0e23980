"""The native core under libFuzzer with ASan and UBSan: commands, records, descriptions, arrivals.

Each target begins from valid inputs that it writes itself. What breaks it is kept, and the failure
says how to run it again.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from fuzz.generate import SEED, TIMES, say

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "fuzz"
FOUND = BUILT / "found"
# Executions and the longest input. One takes microseconds, but of the last a loop's turns.
TARGETS = {
    "commands": (7_500_000, 256),
    "records": (1_500_000, 96),
    "descriptions": (1_200_000, 400),
    "arrivals": (20_000, 900),
}


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    configure = ["cmake", "-S", str(Path(__file__).parent / "native"), "-B", str(BUILT)]
    configure += ["-G", "Ninja", "-DCMAKE_CXX_COMPILER=clang++-19"]
    for command in (configure, ["cmake", "--build", str(BUILT)]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    FOUND.mkdir(exist_ok=True)


def run(*command: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    # A library behind libfabric's would take the signals, and leave files where it runs.
    options = {"ASAN_OPTIONS": "detect_leaks=1", "IPATH_NO_BACKTRACE": "1"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, **options},
        cwd=FOUND,
        check=False,
    )


@pytest.mark.timeout(900 + 600 * TIMES)
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = str(BUILT / target)
    assert run(program, "--seeds", str(tmp_path), timeout_s=60).returncode == 0
    assert list(tmp_path.iterdir()), "there is something to begin from"
    count, longest = TARGETS[target]
    runs = max(1, int(count * TIMES))
    done = run(
        program, f"-runs={runs}", f"-seed={SEED % (1 << 32)}", f"-max_len={longest}",
        f"-artifact_prefix={FOUND}/{target}-", "-timeout=20", "-rss_limit_mb=2048",
        "-print_final_stats=1", "-print_funcs=0", "-verbosity=0", str(tmp_path),
        timeout_s=60 + 600 * TIMES,
    )  # fmt: skip
    kept = re.findall(r"Test unit written to (\S+)", done.stderr)
    again = f"run it again: {program} {kept[0]}" if kept else "no input was kept"
    assert done.returncode == 0, f"EPFABRIC_SEED={SEED}; {again}\n{done.stderr[-6000:]}"
    made = int(re.findall(r"number_of_executed_units:\s*(\d+)", done.stderr)[0])
    assert made >= runs
    say(capsys, f"{target}: {made:,} executions")
