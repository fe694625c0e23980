"""Ranks that reach each other by commands alone, and whose payload lies in GPU memory; a process of
copy_proxy.py does what the commands ask for. Run by test_mps.py: WORLD. Ends with the bytes that
were copied.

Both processes are clients of CUDA MPS: copies run beside kernels that wait for them.
"""

from __future__ import annotations

import mmap
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from cuda.core import Device
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.low_latency import SIGNAL_WORDS, SOURCE, LowLatency, Through
from epfabric.cuda.rank import OwnMemory, RankOnDevice, Segments
from epfabric.cuda.window import Shape, region_bytes
from epfabric.layout import AGENT_ABORT, layout_of
from epfabric.lending import FIRST_RING
from gpu.copy_proxy import Setup, handle_of
from gpu.expert_ranks import Batch, Rank, came, check_dispatch, trip

RINGS, DEPTH, SIGNALS = 5, 256, SIGNAL_WORDS + 1
BLOCKS = 24  # of a rank: copies need room too
TRIPS = 8


class RankMemory:
    """A rank's two segments, as an agent makes them, and its region in GPU memory."""

    def __init__(self, world: int, rank: int, size_bytes: int, stack: ExitStack) -> None:
        layout = layout_of(RINGS, DEPTH, SIGNALS, world)
        sizes = (layout.pod_bytes, layout.agent_bytes)
        self.fds = os.memfd_create(f"pod-{rank}"), os.memfd_create(f"agent-{rank}")
        for fd, size in zip(self.fds, sizes, strict=True):
            stack.callback(os.close, fd)
            os.ftruncate(fd, size)
        reads = (mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ)
        triples = zip(self.fds, sizes, reads, strict=True)
        self._maps = [np.frombuffer(mmap.mmap(fd, n, prot=p), np.uint8) for fd, n, p in triples]
        pod, agent = (int(one.ctypes.data) for one in self._maps)
        segments = Segments(pod, agent, layout, RINGS, DEPTH, SIGNALS, world, rank)
        self.device = stack.enter_context(RankOnDevice(segments, timeout_s=20.0))
        self.region = OwnMemory(size_bytes)
        stack.callback(self.region.close)
        self.through = Through(
            rank=self.device.address,
            region=self.region.address,
            size_bytes=size_bytes,
            offset=0,
            rings=RINGS,
            first_ring=FIRST_RING,
            first_signal=1,
            abort=self.device.agent_address + AGENT_ABORT,
        )


@contextmanager
def copied_ranks(
    kernels: Kernels, shape: Shape
) -> Iterator[tuple[list[Rank], subprocess.Popen[str]]]:
    with ExitStack() as stack:
        world = shape.world
        memories = [RankMemory(world, rank, region_bytes(shape), stack) for rank in range(world)]
        fds = [fd for one in memories for fd in one.fds]
        setup = Setup(RINGS, DEPTH, SIGNALS, [one.fds for one in memories],
                    [handle_of(one.region.address) for one in memories])  # fmt: skip
        proxy = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "gpu.copy_proxy"], pass_fds=fds, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
        )  # fmt: skip
        stack.callback(proxy.kill)
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        proxy.stdin.write(setup.line())
        proxy.stdin.flush()
        assert proxy.stdout.readline() == "ready\n"
        ranks = []
        for rank, one in enumerate(memories):
            end = LowLatency(
                shape, rank, kernels, blocks=BLOCKS, timeout_s=20.0, through=one.through
            )
            end.connect([end.window if other == rank else 0 for other in range(world)])
            ranks.append(Rank(end, (False, True)))
            stack.callback(ranks[-1].close)
        yield ranks, proxy


def main() -> None:
    world, seed = int(sys.argv[1]), secrets.randbits(32)
    print(f"seed {seed}", flush=True)
    rng = np.random.default_rng(seed)
    Device(0).set_current()
    shape = Shape(world, 8 * world, tokens=60, hidden=2048, topk=4)
    with copied_ranks(Kernels(SOURCE), shape) as (ranks, proxy):
        for call in range(TRIPS):
            trip(ranks, rng, which=call % 2)
            for rank in ranks:
                rank.dispatch(Batch.random(rng, shape, shape.tokens), 1 - call % 2)
            came(ranks)
            check_dispatch(ranks, 1 - call % 2)
        assert proxy.stdout is not None
        assert proxy.stdin is not None
        proxy.stdin.close()
        print(int(proxy.stdout.readline()), flush=True)


if __name__ == "__main__":
    main()
