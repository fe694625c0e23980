"""Buffer's calls of two processes with a GPU each, beside NCCL and copies of the same bytes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..native import BenchError
from ..run import Bench, Run
from ..series import Limit, Line, parse_line

LIMIT_S = 280.0


def measure(run: Run) -> list[Line]:
    return measure_on((0, 1), run)


def measure_on(gpus: Sequence[int], run: Run) -> list[Line]:
    """gpus: of the two ranks. On one GPU ranks take turns and there are no peers: only the data
    means anything."""
    # Multicast by NVLink is not used, by us or by peers: all move the same bytes the same way.
    plain = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "epfabric_bench.pair_rank", str(Path(folder) / "meet")]
        rest = [",".join(map(str, gpus)), str(run.rounds), str(int(run.small))]
        ranks = [
            subprocess.Popen(
                [*command, str(rank), *rest], text=True, env=os.environ | plain,
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(2)
        ]  # fmt: skip
        try:
            said, _ = ranks[0].communicate(timeout=run.seconds(LIMIT_S))
            codes = [one.wait(timeout=60) for one in ranks]
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"the ranks did not end: {error}") from error
        finally:
            for one in ranks:
                one.kill()
    if any(codes):
        raise BenchError(f"the ranks ended with {codes}; what they say stands above")
    return [parse_line(line) for line in said.splitlines() if line.startswith("{")]


def missing() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU here"
    if importlib.util.find_spec("torch") is None:
        return "no torch here"
    import torch

    return None if torch.cuda.device_count() > 1 else "one GPU here: two are needed"


BENCH = Bench(
    "two_gpus",
    "Buffer's calls of two processes with a GPU each, over NVLink",
    measure,
    (
        Limit("seconds", None, 1.0, of="ratio", case="128 tokens, dispatch fp8"),
        Limit("seconds", None, 1.0, of="ratio", case="128 tokens, combine bf16"),
        Limit("nvlink_bytes_per_second", None, 320e9),
        Limit("barrier_seconds", None, 3.9e-6),
    ),
    missing,
    native=False,
)
