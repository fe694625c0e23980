"""Starts ranks of device_rank.py as processes and hears how they ended; for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LIMIT_S = 150
ENDS_ALONE = ("dies",)  # works in which the last rank ends without a word


def run_ranks(
    folder: Path, work: str, gpus: Sequence[int], visible: Sequence[str | None] | None = None,
    before: Sequence[tuple[str, ...]] | None = None, more: Mapping[str, str] | None = None,
) -> list[tuple[int, str]]:  # fmt: skip
    """By rank: exit code and what it printed. visible: its CUDA_VISIBLE_DEVICES; before: of its
    command; more: of the environment of all."""
    world, ranks = len(gpus), []
    for rank, gpu in enumerate(gpus):
        name = visible[rank] if visible is not None else None
        environment = os.environ | (more or {})
        if name is not None:
            environment["CUDA_VISIBLE_DEVICES"] = name
        command = [
            *(before[rank] if before is not None else ()),
            sys.executable,
            "-m",
            "gpu.device_rank",
            str(folder / "meet"),
        ]
        command += [str(world), str(rank), str(gpu), work]
        ranks.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env=environment,
            )
        )  # fmt: skip
    try:
        return [(one.communicate(timeout=LIMIT_S)[0], one.returncode)[::-1] for one in ranks]
    finally:
        for one in ranks:
            one.kill()


def check(results: list[tuple[int, str]], work: str) -> None:
    for rank, (code, said) in enumerate(results):
        print(f"== rank {rank} ended with {code}\n{said[-3000:]}")
    assert [code for code, _ in results] == [0] * len(results)
    last = len(results) - 1
    for rank, (_, said) in enumerate(results):
        assert f"{work}: all as it has to be" in said or (work in ENDS_ALONE and rank == last)
