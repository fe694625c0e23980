"""The ring keeps order and payload between two threads, under each sanitizer."""

import os
import random
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "kernels/epfabric/include"
SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_commands_arrive_whole_in_order_and_after_their_payload(
    sanitizer: str, tmp_path: Path
) -> None:
    print(f"seed {SEED}")
    program = str(tmp_path / "fifo")
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
         f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", f"-I{INCLUDE}",
         str(HERE / "fifo_threads.cc"), "-o", program],
        check=True, timeout=120,
    )  # fmt: skip
    done = subprocess.run(
        [program, str(SEED)],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
