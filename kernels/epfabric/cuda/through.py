"""A session's agent as a buffer's kernels reach it: rings, signals, a region; for the buffers."""

from __future__ import annotations

from contextlib import ExitStack

from epfabric.cuda.low_latency import SIGNAL_WORDS, Through
from epfabric.cuda.rank import Mapped, RankOnDevice, Segments
from epfabric.errors import SessionError
from epfabric.layout import AGENT_ABORT, layout_of
from epfabric.lending import FIRST_RING
from epfabric.limits import OFFSET_UNIT
from epfabric.region import Region
from epfabric.session import Session

MAX_OFFSET = OFFSET_UNIT << 32


class AgentEnd:
    """A CUDA context must be current. Every rank makes it of a region at the same offset, and as
    many times. No other buffer of the session has one meanwhile."""

    def __init__(self, session: Session, region: Region, timeout_s: float) -> None:
        address, size_bytes = int(region.array.ctypes.data), region.array.nbytes
        if region.offset + size_bytes > MAX_OFFSET:
            raise SessionError(f"commands reach {MAX_OFFSET} bytes: the region ends beyond")
        loan, pod, agent = session.lend(SIGNAL_WORDS)
        self._session, self._heads, self._lost = session, loan.heads, False
        self._rank: RankOnDevice | None = None
        rings, depth, signals = session.rings, session.depth, session.signals
        world = session.world_size
        layout = layout_of(rings, depth, signals, world)
        segments = Segments(pod, agent, layout, rings, depth, signals, world, session.rank)
        with ExitStack() as undo:
            undo.callback(self._give_back)
            self._rank = undo.enter_context(RankOnDevice(segments, loan.heads, timeout_s))
            self._region = region  # its memory stays while the GPU has it
            mapped = Mapped(address, size_bytes)
            undo.callback(mapped.close)
            self.through = Through(
                rank=self._rank.address,
                region=mapped.address,
                size_bytes=size_bytes,
                offset=region.offset,
                first_ring=FIRST_RING,
                first_signal=loan.first_signal,
                abort=self._rank.agent_address + AGENT_ABORT,
            )
            self._stack = undo.pop_all()

    def note(self, *, lost: bool) -> None:
        """lost: its kernels gave a ring up; the session lends none again."""
        self._lost = lost

    def close(self) -> None:
        """After the last kernel that uses it (idempotent)."""
        if self._rank is not None:
            self._heads, self._rank = self._rank.heads(), None
        self._stack.close()

    def _give_back(self) -> None:
        self._session.lending.back(self._heads, lost=self._lost)
