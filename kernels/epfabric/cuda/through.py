"""A session's agent as a buffer's kernels reach it: rings, signals, a region; for the buffers."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from epfabric.cuda import channels, low_latency
from epfabric.cuda.low_latency import Through
from epfabric.cuda.rank import Mapped, RankOnDevice, Segments
from epfabric.errors import SessionError
from epfabric.layout import AGENT_ABORT, layout_of
from epfabric.lending import FIRST_RING
from epfabric.limits import OFFSET_UNIT
from epfabric.region import Region
from epfabric.session import Session

if TYPE_CHECKING:
    from epfabric.cuda.gpu_region import GpuRegion

MAX_OFFSET = OFFSET_UNIT << 32


class AgentEnd:
    """For the low-latency calls, the high-throughput ones, or both, each with a region of its own.

    A CUDA context must be current. Every rank makes it of regions at the same offsets, and as many
    times. No other buffer of the session has one meanwhile.
    """

    def __init__(
        self, session: Session, timeout_s: float, *,
        low_latency_region: Region | GpuRegion | None = None,
        throughput_region: Region | GpuRegion | None = None,
    ) -> None:  # fmt: skip
        regions = (low_latency_region, throughput_region)
        for region in regions:
            if region is not None and region.offset + region.size_bytes > MAX_OFFSET:
                raise SessionError(f"commands reach {MAX_OFFSET} bytes: the region ends beyond")
        words = [
            count if region is not None else 0
            for region, count in zip(
                regions, (low_latency.SIGNAL_WORDS, channels.SIGNAL_WORDS), strict=True
            )
        ]
        loan, pod, agent = session.lend(sum(words))
        self._session, self._heads, self._lost = session, loan.heads, False
        self._rank: RankOnDevice | None = None
        rings, depth, signals = session.rings, session.depth, session.signals
        world = session.world_size
        layout = layout_of(rings, depth, signals, world)
        segments = Segments(pod, agent, layout, rings, depth, signals, world, session.rank)
        with ExitStack() as undo:
            undo.callback(self._give_back)
            self._rank = undo.enter_context(RankOnDevice(segments, loan.heads, timeout_s))
            self._regions = regions  # their memory stays while the GPU has it
            self.low_latency, self.throughput = (
                self._through(region, first, undo) if region is not None else None
                for region, first in zip(
                    regions, (loan.first_signal, loan.first_signal + words[0]), strict=True
                )
            )
            self._stack = undo.pop_all()

    def alike(self, value: int, limit_s: float) -> bool:
        """As alike() below; once, by all ranks."""
        assert self.throughput is not None
        return alike(self._session, self.throughput.first_signal, value, limit_s)

    def note(self, *, lost: bool) -> None:
        """lost: its kernels gave a ring up; the session lends none again."""
        self._lost = self._lost or lost

    def close(self) -> None:
        """After the last kernel that uses it (idempotent)."""
        if self._rank is not None:
            self._heads, self._rank = self._rank.heads(), None
        self._stack.close()

    def _through(self, region: Region | GpuRegion, first_signal: int, undo: ExitStack) -> Through:
        assert self._rank is not None
        if isinstance(region, Region):
            mapped = Mapped(int(region.array.ctypes.data), region.size_bytes)
            undo.callback(mapped.close)
            address = mapped.address
        else:
            address = region.address
        return Through(
            rank=self._rank.address,
            region=address,
            size_bytes=region.size_bytes,
            offset=region.offset,
            rings=self._session.rings,
            first_ring=FIRST_RING,
            first_signal=first_signal,
            abort=self._rank.agent_address + AGENT_ABORT,
        )

    def _give_back(self) -> None:
        self._session.lending.back(self._heads, lost=self._lost)


def alike(session: Session, word: int, value: int, limit_s: float) -> bool:
    """Whether every rank says the same number, from 1, within a time. By all ranks, by a word of
    their first ring that nothing else uses or has used; kernels have their words of other rings."""
    end = time.monotonic() + limit_s
    others = [rank for rank in range(session.world_size) if rank != session.rank]
    for rank in others:
        session.ring(0).signal(rank, word, value)
    session.ring(0).flush()
    for rank in others:
        if not session.wait_signal(rank, 0, word, 1, max(end - time.monotonic(), 0.0)):
            raise SessionError(f"rank {rank} was lost before it had made its part of the buffer")
    return all(session.signal_value(rank, 0, word) == value for rank in others)
