"""Whether a rank came in time is the same for all blocks of a call, however close it is."""

from __future__ import annotations

import ctypes
import secrets
from pathlib import Path

import numpy as np
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.low_latency import SOURCE, LowLatency
from epfabric.cuda.window import Shape
from harness.device import Gpu, Words

BLOCKS, RANKS, TIMEOUT_S = 64, 128, 0.002
CALLS = 20


def test_all_blocks_of_a_call_agree_who_came(gpu: Gpu) -> None:
    kernels = Kernels(Path(__file__).with_name("verdicts.cu"))
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    shape = Shape(world=RANKS, experts=RANKS, tokens=1, hidden=128, topk=1)
    came = lost = 0
    delays, said = Words(BLOCKS * RANKS, np.uint64), Words(BLOCKS * RANKS, np.uint32)
    with LowLatency(
        shape, 0, Kernels(SOURCE), blocks=BLOCKS, timeout_s=TIMEOUT_S, mask=True
    ) as end:
        end.connect([end.window] * RANKS)
        stream = gpu.stream()
        for call in range(CALLS):
            end.clean_mask(stream=int(stream.handle))
            about = rng.uniform(0.8, 1.2, (1, RANKS)) * rng.uniform(0.95, 1.05, (BLOCKS, RANKS))
            delays.write((about * TIMEOUT_S * 1e9).astype(np.uint64).reshape(-1))
            said.write(np.full(BLOCKS * RANKS, 7, np.uint32))
            values = [call, int(delays.address), int(said.address)]
            kernels.launch("ask", BLOCKS, int(stream.handle), end.buffer,
                           *map(ctypes.c_uint64, values))  # fmt: skip
            stream.sync()
            table = said.read().reshape(BLOCKS, RANKS)
            assert (table == table[0]).all(), f"call {call}"
            assert set(np.unique(table)) <= {1, 2}
            assert end.masked() == set(np.nonzero(table[0] == 2)[0])
            assert end.failure() is None
            came, lost = came + int((table[0] == 1).sum()), lost + int((table[0] == 2).sum())
    assert came > 0
    assert lost > 0
    delays.close()
    said.close()
