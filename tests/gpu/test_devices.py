"""Ranks of a Buffer as processes, each with a GPU of its own where there are several."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")

from epfabric import SessionError  # noqa: E402
from epfabric.buffer.members import Offer  # noqa: E402
from gpu.buffer_ranks import Comm, Ranks, bounded  # noqa: E402
from gpu.device_ranks import check, run_ranks  # noqa: E402

GPUS = torch.cuda.device_count()
WORLD = max(2, GPUS)
WORKS = ("low_latency", "throughput", "elastic", "graphs", "masks", "dies")
several = pytest.mark.skipif(GPUS < 2, reason="one GPU here: two are needed")


@pytest.mark.parametrize("work", WORKS)
def test_a_process_for_each_rank(tmp_path: Path, work: str) -> None:
    gpus = [rank % max(1, GPUS) for rank in range(WORLD)]
    check(run_ranks(tmp_path, work, gpus, [None] * WORLD), work)


@several
@pytest.mark.parametrize("work", ["low_latency", "throughput"])
def test_each_process_sees_its_own_gpu_only(tmp_path: Path, work: str) -> None:
    visible = [str(rank) for rank in range(WORLD)]
    check(run_ranks(tmp_path, work, [0] * WORLD, visible), work)


@several
@pytest.mark.skipif(os.geteuid() != 0, reason="hiding a device node needs root")
def test_a_gpu_whose_device_node_is_hidden_is_reached_or_named(tmp_path: Path) -> None:
    """As in containers that were given one GPU each: works, or all ranks say what is missing."""
    before = []
    for rank in range(2):
        hide = f'mount --bind /dev/null /dev/nvidia{1 - rank} && exec "$@"'
        before.append(("unshare", "-m", "--propagation", "private", "sh", "-c", hide, "sh"))
    results = run_ranks(tmp_path, "low_latency", [0, 0], [None, None], before)
    for rank, (code, said) in enumerate(results):
        print(f"== rank {rank} ended with {code}\n{said[-3000:]}")
        assert code == 0 or "cannot be reached" in said
    assert len({code for code, _ in results}) == 1


def test_memory_that_one_rank_cannot_reach_is_an_error_of_all_ranks() -> None:
    class Lying(Comm):
        """Gives rank 0 another handle for the memory of rank 1 than it has."""

        def allgather(self, value: Any) -> list[Any]:
            values = super().allgather(value)
            if self.Get_rank() == 0 and isinstance(value, Offer):
                values[1] = replace(values[1], process="another", handle=bytes(64))
            return values

    ranks = Ranks(2)
    ranks.comms = [Lying(comm._rank, comm._barrier, comm._values) for comm in ranks.comms]

    def make(rank: int) -> str:
        with pytest.raises(SessionError, match="the GPU memory of rank 1 cannot be reached") as why:
            bounded(8.0)(None, comm=ranks.comms[rank], num_nvl_bytes=1 << 22)
        return str(why.value)

    try:
        assert all(text.startswith("rank 0:") for text in ranks.each(make))
    finally:
        ranks.close()
