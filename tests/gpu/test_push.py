"""Commands that a GPU pushes arrive once and whole, whoever pushes and however often."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
from harness.device import Gpu, Words, ranks_of
from native.pod import Group

NBYTES = 1 << 21
COUNT = 20_011  # hundreds of laps of a ring, and no multiple of a warp
PUSHERS = {
    "push_by_thread": [(1, 1), (1, 3), (1, 8)],  # grid, batch
    "push_by_warps": [(1, 0), (16, 0)],
    "push_by_owner": [(1, 0)],
}
CASES = [(name, *case) for name, cases in PUSHERS.items() for case in cases]


@pytest.mark.parametrize(("kernel", "grid", "batch"), CASES)
@pytest.mark.parametrize("nodes", [[[0, 1]], [[0], [1]]], ids=["loopback", "tcp"])
def test_every_command_does_its_work_once(
    gpu: Gpu, failed: Words, kernel: str, grid: int, batch: int, nodes: list[list[int]]
) -> None:
    """In two launches: the second goes on where the first one stopped."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    with Group(nodes, depth=64, nbytes=NBYTES) as group, ranks_of(group) as ranks:
        source, target = ranks
        sent = random.integers(0, 256, 2 * COUNT * 16, np.uint8)
        source.region[: sent.size] = sent
        target.region[:] = 0xAA
        stream = gpu.stream()
        block = {"push_by_thread": 1, "push_by_warps": 256, "push_by_owner": 32}[kernel]
        for launched in range(2):
            at = launched * COUNT * 16
            values = [source.address, np.uint32(1), np.uint64(at), np.uint64(at), np.uint32(COUNT)]
            if kernel == "push_by_thread":
                values.append(np.uint32(batch))
            gpu.launch(stream, kernel, grid, block, *values, failed.address)
            stream.sync()
        ring = 1 if kernel == "push_by_owner" else 0
        assert failed.read()[0] == 0
        assert source.device.heads()[ring] == 2 * COUNT
        source.pod.wait(ring, 2 * COUNT - 1)
        count = source.pod.session.counters()["rings"][ring]
        assert count["ops"]["write"] == 2 * COUNT
        assert count["refused"] == {}
        assert np.array_equal(target.region[: sent.size], sent)
        assert (target.region[sent.size :] == 0xAA).all()
