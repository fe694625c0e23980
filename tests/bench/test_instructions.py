"""Instructions that a proxy spends on a command: what a busy machine cannot blur."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from epfabric_bench import native

BOUND = 440.0  # 397 with g++ 12 at -O2, of which the null transport takes 45
FILLS, CASES, COMMANDS = 2, 4, 8192  # the program warms up with one fill more


@pytest.mark.timeout(320, func_only=True)
@pytest.mark.usefixtures("programs")
def test_a_command_costs_no_more_instructions_than_it_did(tmp_path: Path) -> None:
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={tmp_path / 'profile'}"]
    command += ["--toggle-collect=*Agent::turn_until_done*", str(native.BUILD / "proxy")]
    command += native.arguments({"rounds": 1, "fills": FILLS})
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    collected = re.search(r"Collected : (\d+)", done.stderr)
    assert collected is not None, done.stderr[-4000:]
    spent = int(collected[1]) / (CASES * (FILLS + 1) * COMMANDS)
    print(f"{spent:.0f} instructions a command")
    assert 100 < spent < BOUND
