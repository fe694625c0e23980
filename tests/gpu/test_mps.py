"""Ranks of a Buffer as processes that share a GPU as clients of CUDA MPS: side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")

from gpu.device_ranks import LIMIT_S, check, run_ranks  # noqa: E402
from gpu.mps import Mps  # noqa: E402


@pytest.mark.parametrize("world", [2, 4])
def test_payload_in_gpu_memory_arrives_whole_where_another_process_copies_it(
    mps: Mps, world: int
) -> None:
    """No agent does this: the proxy is the test's own, for what stays on one GPU."""
    done = subprocess.run(
        [sys.executable, "-m", "gpu.copied_ranks", str(world)], capture_output=True, text=True,
        check=False, timeout=LIMIT_S, env=os.environ | mps.environment,
    )  # fmt: skip
    print(done.stdout, done.stderr[-3000:])
    assert done.returncode == 0
    assert int(done.stdout.split()[-1]) > 0
    assert mps.servers()


def test_ranks_that_share_a_gpu_side_by_side_get_what_was_sent(mps: Mps, tmp_path: Path) -> None:
    check(run_ranks(tmp_path, "graphs", [0, 0], more=mps.environment), "graphs")
    assert mps.servers()
