"""Ranks of a Buffer as processes that share a GPU as clients of CUDA MPS: side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")

from gpu.device_ranks import check, run_ranks  # noqa: E402
from gpu.mps import Mps  # noqa: E402

CASES = [("low_latency", 2), ("throughput", 4), ("graphs", 2), ("survives", 8)]


@pytest.mark.parametrize(("work", "world"), CASES)
def test_ranks_that_share_a_gpu_side_by_side(
    mps: Mps, tmp_path: Path, work: str, world: int
) -> None:
    check(run_ranks(tmp_path, work, [0] * world, more=mps.environment), work)
    assert mps.servers()
