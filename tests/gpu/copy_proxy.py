"""A proxy of the tests, of GPU memory within one GPU: does what commands ask for by device copies.
No agent does this: they open no GPU.

For copied_ranks.py, which starts it as a process: reads a line of JSON (`Setup`), says `ready`, and
serves the rings until its input ends.
"""

from __future__ import annotations

import json
import mmap
import select
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from cuda.bindings import driver
from epfabric.command import Op, op_of, unpack_write
from epfabric.cuda.rank import checked
from epfabric.layout import RING_COMPLETED, RING_COUNTERS_BYTES, RING_TAIL, layout_of
from epfabric.limits import OFFSET_UNIT

LIMIT_S = 120.0
WORD = 8


@dataclass(frozen=True)
class Setup:
    """segments: of each rank, descriptors of the pod's and of the agent's. regions: of each rank,
    its handle for other processes, as hexadecimal digits."""

    rings: int
    depth: int
    signals: int
    segments: list[tuple[int, int]]
    regions: list[str]

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


class CopyProxy:
    """The rings of all ranks, and where their commands point."""

    def __init__(self, setup: Setup) -> None:
        self.setup, world = setup, len(setup.segments)
        self.at = layout_of(setup.rings, setup.depth, setup.signals, world)
        sizes = (self.at.pod_bytes, self.at.agent_bytes)
        maps = [
            [mmap.mmap(*both) for both in zip(fds, sizes, strict=True)] for fds in setup.segments
        ]
        self.pods, self.agents = (
            [np.frombuffer(pair[which], np.uint64) for pair in maps] for which in (0, 1)
        )
        self.regions = [opened(handle) for handle in setup.regions]
        self.stream = checked(driver.cuStreamCreate(1))
        self.taken = [[0] * setup.rings for _ in range(world)]
        self.copied_bytes = 0

    def serve(self, rank: int, ring: int) -> bool:
        """What is in the ring: copies, then signals, then the ring's counters."""
        setup, first = self.setup, self.taken[rank][ring]
        signals = []
        ticket = first
        while ticket - first < setup.depth and (pair := self.command(rank, ring, ticket)):
            op, what = op_of(pair), unpack_write(pair)
            if op not in (Op.WRITE, Op.SIGNAL):
                raise ValueError(f"{op!r} is not one that low-latency calls push")
            if op is Op.WRITE:
                size = what.units * OFFSET_UNIT
                source = self.regions[rank] + what.source * OFFSET_UNIT
                target = self.regions[what.rank] + what.destination * OFFSET_UNIT
                checked(driver.cuMemcpyDtoDAsync(target, source, size, self.stream))
                self.copied_bytes += size
            if what.advance:
                word = (rank * setup.rings + ring) * setup.signals + what.signal
                signals.append((what.rank, self.at.signals // WORD + word, what.advance))
            ticket += 1
        if ticket == first:
            return False
        checked(driver.cuStreamSynchronize(self.stream))
        for target, word, advance in signals:
            self.agents[target][word] += np.uint64(advance)
        counters = self.at.counters + ring * RING_COUNTERS_BYTES
        for place in (RING_TAIL, RING_COMPLETED):
            self.agents[rank][(counters + place) // WORD] = ticket
        self.taken[rank][ring] = ticket
        return True

    def command(self, rank: int, ring: int, ticket: int) -> tuple[int, int] | None:
        """Its halves, once both are of this lap."""
        depth = self.setup.depth
        slot = self.at.slots // WORD + 2 * (ring * depth + ticket % depth)
        lap = 0 if ticket & depth else 1
        pair = int(self.pods[rank][slot]), int(self.pods[rank][slot + 1])
        return pair if pair[0] >> 63 == pair[1] >> 63 == lap else None


def opened(handle: str) -> int:
    found = driver.CUipcMemHandle()
    found.reserved = bytes.fromhex(handle)
    lazily = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    return int(checked(driver.cuIpcOpenMemHandle(found, lazily)))


def handle_of(address: int) -> str:
    handle: Any = checked(driver.cuIpcGetMemHandle(address))
    return bytes(handle.reserved).hex()


def main() -> None:
    checked(driver.cuInit(0))
    checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(0))))
    proxy = CopyProxy(Setup(**json.loads(sys.stdin.readline())))
    print("ready", flush=True)
    end, idle = time.monotonic() + LIMIT_S, 0
    ranks, rings = range(len(proxy.pods)), range(proxy.setup.rings)
    places = [(rank, ring) for rank in ranks for ring in rings]
    while time.monotonic() < end:
        # Each ring once, whatever the others have.
        idle = 0 if sum([proxy.serve(*one) for one in places]) else idle + 1
        if idle % 64 == 63 and select.select([sys.stdin], [], [], 0)[0]:
            break
    print(proxy.copied_bytes, flush=True)


if __name__ == "__main__":
    main()
