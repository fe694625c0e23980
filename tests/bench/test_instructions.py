"""Instructions that a proxy spends on a command: what a busy machine cannot blur."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from epfabric_bench import native

BOUND = 450.0  # 441 with g++ 12 at -O2, of which the null transport takes 45
LINES = 1.1  # 0.85 in a first-level cache of 32 KiB; docs/architecture.md says what the floor is
FILLS, CASES, COMMANDS = 2, 4, 8192  # the program warms up with one fill more
CACHES = ("--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64")
STAGES = {
    "take": r"Ring::take\(",
    "check": r"agent::check\(",
    "post": r"::post<",
    "serve": r"::serve\(",
    "pass over rings": r"::serve_pass\(",
    "turn, poll, retire": r"::work\(",
}


@pytest.mark.timeout(320, func_only=True)
@pytest.mark.usefixtures("programs")
def test_a_command_costs_no_more_instructions_than_it_did(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", *CACHES]
    command += ["--toggle-collect=*Agent::turn_until_done*", str(native.BUILD / "proxy")]
    command += native.arguments({"rounds": 1, "fills": FILLS})
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    collected = re.search(r"Collected : (\d+)", done.stderr)
    missed = re.search(r"D1 +misses: +([\d,]+)", done.stderr)
    assert collected is not None, done.stderr[-4000:]
    assert missed is not None, done.stderr[-4000:]
    commands = CASES * (FILLS + 1) * COMMANDS
    spent = int(collected[1]) / commands
    lines = int(missed[1].replace(",", "")) / commands
    stages = {name: count / commands for name, count in by_stage(profile).items()}
    print(f"{spent:.0f} instructions a command, {lines:.2f} cache lines")
    print(", ".join(f"{name} {count:.0f}" for name, count in stages.items()))
    assert 100 < spent < BOUND
    assert lines < LINES
    assert sum(stages.values()) > 0.9 * spent


def by_stage(profile: Path) -> dict[str, int]:
    """Instructions of the functions of each stage and of what is inlined in them."""
    annotate = ["callgrind_annotate", "--show=Ir", "--auto=no", "--threshold=100", str(profile)]
    done = subprocess.run(annotate, capture_output=True, text=True, timeout=60, check=True)
    found = dict.fromkeys(STAGES, 0)
    for line in done.stdout.splitlines():
        row = re.match(r" *([\d,]+) \([ \d.]+%\) +[^:]+:(.*)", line)
        for name, pattern in STAGES.items():
            if row is not None and re.search(pattern, row[2]):
                found[name] += int(row[1].replace(",", ""))
                break
    return found
