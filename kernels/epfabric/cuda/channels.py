"""High-throughput dispatch and combine of one rank: its peers on the node by memory that their
kernels reach, others by its agent; for epfabric.buffer.

Arrays are addresses in GPU memory, streams are handles. Layouts are those of channels.h,
channel_dispatch.cuh and channel_combine.cuh.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass

from epfabric.command import MAX_UNITS
from epfabric.cuda.abort import Abort
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.low_latency import Through
from epfabric.cuda.rank import HostWords, Memory, OwnMemory, checked, copy_in, words_at, zeros
from epfabric.errors import SessionError, Timeout
from epfabric.limits import OFFSET_UNIT

SOURCE = "channels.cu"
WITHIN_NODE = ("EPF_CHANNELS_PROXIED=0",)  # of kernels for ranks that reach each other's memory
MAX_CHANNELS = MAX_RANKS = 64
MAX_LOCAL_EXPERTS = 1024
BLOCKS = 96  # of a call between nodes: the same on all GPUs, so that all have as many channels
_WORDS = MAX_CHANNELS * MAX_RANKS * 8
_RINGS = MAX_RANKS * 8 + MAX_RANKS * MAX_LOCAL_EXPERTS * 4 + 4 * _WORDS
_NOTE = 16 + MAX_LOCAL_EXPERTS * 4
_RECORD = 16 + MAX_RANKS * 8
_BATCH = 64  # slots that a block writes at once
_STATE_WORDS = 4
_LOST_RING = 3  # the state's word
LEAST_SLOTS = 4
SIGNAL_WORDS = 3  # that a buffer has of each peer which the agent reaches
_AWAITED = ("nothing", "a call", "free slots", "tokens", "rows", "room in the ring")
_KERNELS = ("channels_meet", "channels_dispatch", "channels_combine")


@dataclass(frozen=True)
class ChannelShape:
    """Mirror of epfabric::ChannelShape: what all ranks give alike to one call."""

    world: int
    channels: int
    slots: int
    topk: int
    scales: int
    row_bytes: int

    @property
    def slot_bytes(self) -> int:
        return 16 + (self.topk + 3) // 4 * 32 + (self.scales + 3) // 4 * 16 + self.row_bytes

    @property
    def rings_bytes(self) -> int:
        return self.channels * self.world * self.slots * self.slot_bytes

    @property
    def bytes(self) -> int:
        """Of the window."""
        return _RINGS + self.rings_bytes

    @property
    def region_bytes(self) -> int:
        """Of the region of a rank that exchanges with ranks which only agents reach."""
        return _notes(self.world) + 2 * self.rings_bytes


def _notes(world: int) -> int:
    """Before the rings of a region."""
    return 2 * world * (_NOTE + _RECORD * MAX_CHANNELS)


def fitting(
    window_bytes: int, world: int, channels: int, slots: int, topk: int, scales: int,
    row_bytes: int, region_bytes: int | None = None,
) -> ChannelShape:  # fmt: skip
    """With as many slots as there is room for, `slots` at most. Raises SessionError for too few.

    region_bytes: of the region, where there are ranks that only agents reach.
    """
    least = ChannelShape(world, channels, LEAST_SLOTS, topk, scales, row_bytes)
    one = least.rings_bytes // LEAST_SLOTS
    for what, has, needed, room in (
        ("bytes", window_bytes, least.bytes, (window_bytes - _RINGS) // one),
        ("bytes of its region", region_bytes, least.region_bytes,
         ((region_bytes or 0) - _notes(world)) // (2 * one)),
    ):  # fmt: skip
        if has is None:
            continue
        if room < LEAST_SLOTS:
            raise SessionError(
                f"{channels} channels for tokens of {row_bytes} bytes need {needed} {what} of "
                f"every rank, this buffer has {has}"
            )
        slots = min(slots, room)
    if region_bytes is not None and min(slots, _BATCH) * least.slot_bytes > MAX_UNITS * OFFSET_UNIT:
        raise SessionError(f"tokens of {row_bytes} bytes are too large for ranks of other nodes")
    return ChannelShape(world, channels, slots, topk, scales, row_bytes)


class _Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ChannelShape.__dataclass_fields__]


class ChannelBuffer(ctypes.Structure):
    """Mirror of epfabric::ChannelBuffer."""

    _fields_ = [
        ("windows", ctypes.c_uint64),
        ("state", ctypes.c_uint64),
        ("alarm", ctypes.c_uint64),
        ("aborts", ctypes.c_uint64 * 2),
        ("timeout_ns", ctypes.c_uint64),
        ("shape", _Shape),
        ("rank", ctypes.c_uint32),
        ("node_ranks", ctypes.c_uint32),
        ("agent", ctypes.c_uint64),
        ("region", ctypes.c_uint64),
        ("region_offset", ctypes.c_uint64),
        ("tallies", ctypes.c_uint64),
        ("first_ring", ctypes.c_uint32),
        ("first_signal", ctypes.c_uint32),
    ]


class MeetCall(ctypes.Structure):
    """Mirror of epfabric::MeetCall."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("rank_tokens", "expert_tokens", "firsts", "told")),
        *((name, ctypes.c_uint32) for name in ("experts", "alignment")),
    ]


class ChannelDispatch(ctypes.Structure):
    """Mirror of epfabric::ChannelDispatch, which says what each array holds."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "tokens", "scales", "topk", "weights", "in_rank", "firsts", "positions",
                "channel_firsts", "source_tokens", "received", "received_scales", "received_topk",
                "received_weights",
            )
        ),
        *((name, ctypes.c_uint32) for name in ("count", "local_experts", "rows", "fills")),
    ]  # fmt: skip


class ChannelCombine(ctypes.Structure):
    """Mirror of epfabric::ChannelCombine, which says what each array holds."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "rows", "weights", "firsts", "channel_firsts", "positions", "source_tokens", "bias",
                "second_bias", "combined", "combined_weights",
            )
        ),
        *((name, ctypes.c_uint32) for name in ("count", "reserved")),
    ]  # fmt: skip


class Channels:
    """One rank's end. Make it, tell every rank's `window` to every other, then `connect`.

    A CUDA context must be current. All ranks make the same calls in the same order. memory, abort
    and through: as those of LowLatency. No rank is masked: one that is lost fails the buffer.
    """

    def __init__(
        self, world: int, rank: int, kernels: Kernels, *, window_bytes: int, timeout_s: float,
        memory: Memory | None = None, abort: Abort | None = None, through: Through | None = None,
    ) -> None:  # fmt: skip
        if not 0 <= rank < world <= MAX_RANKS:
            raise SessionError(f"rank {rank} is not one of {world} (at most {MAX_RANKS})")
        for name in _KERNELS:
            kernels.function(name)
        self.world, self.rank, self.window_bytes = world, rank, window_bytes
        self._kernels, self._timeout_s, self._abort = kernels, timeout_s, abort
        self._through = through
        self.proxied: frozenset[int] = frozenset()
        self._own = memory or OwnMemory(window_bytes)
        self.window = self._own.address
        self._alarm = HostWords(1)
        self.told = HostWords(2 + MAX_LOCAL_EXPERTS)
        tallies = SIGNAL_WORDS * MAX_CHANNELS * MAX_RANKS if through is not None else 0
        lengths = (world, _STATE_WORDS, 1, tallies)
        self._memory = zeros(8 * sum(lengths))
        self._windows, self._state, zero, tallied = (
            self._memory + 8 * sum(lengths[:i]) for i in range(len(lengths))
        )
        self.buffer = ChannelBuffer(
            windows=self._windows,
            state=self._state,
            alarm=self._alarm.address,
            aborts=(
                abort.address if abort is not None else zero,
                through.abort if through is not None else zero,
            ),
            timeout_ns=int(timeout_s * 1e9),
            rank=rank,
        )
        if through is not None:
            self.buffer.agent, self.buffer.region = through.rank, through.region
            self.buffer.region_offset, self.buffer.tallies = through.offset, tallied
            self.buffer.first_ring = through.first_ring
            self.buffer.first_signal = through.first_signal

    def connect(self, windows: Sequence[int]) -> None:
        """windows: by rank, the address at which this GPU reaches that rank's `window`; 0 where it
        is reached through the agent."""
        if len(windows) != self.world:
            raise SessionError(f"{len(windows)} windows for {self.world} ranks")
        self.proxied = frozenset(rank for rank, window in enumerate(windows) if not window)
        if self.proxied and self._through is None:
            raise SessionError(f"no agent to reach {sorted(self.proxied)} through")
        copy_in(self._windows, (ctypes.c_uint64 * len(windows))(*windows))

    def spread(self, node_ranks: int) -> None:
        """Over nodes of so many ranks each, that follow each other; with 1 each rank is taken for a
        node. All ranks say the same, after connect() and before the first call, unless the memory
        of all is reached."""
        if self.world % node_ranks:
            raise SessionError(f"{self.world} ranks are not nodes of {node_ranks}")
        self.buffer.node_ranks = node_ranks

    @property
    def node_ranks(self) -> int:
        """0: there is one node."""
        return int(self.buffer.node_ranks)

    @property
    def parts(self) -> int:
        """Blocks of a channel: one sends, one receives, and one for each other node forwards."""
        return 1 + (self.world // self.node_ranks if self.node_ranks else 1)

    def fit(
        self, channels: int, slots: int, topk: int, scales: int, row_bytes: int
    ) -> ChannelShape:
        """As fitting(); where the agent is needed a channel has a ring of the session and a block
        for each other node, and there are as many as there can be at most."""
        through = self._through
        if through is None:
            return fitting(self.window_bytes, self.world, channels, slots, topk, scales, row_bytes)
        most = min(through.rings - through.first_ring, BLOCKS // self.parts)
        return fitting(
            self.window_bytes, self.world, min(channels, most), slots, topk, scales, row_bytes,
            through.size_bytes,
        )  # fmt: skip

    def meet(self, shape: ChannelShape, call: MeetCall, *, stream: int) -> None:
        """Launches what every call begins with, and fixes the call's shape."""
        if shape.channels > MAX_CHANNELS:
            raise SessionError(f"{shape.channels} channels: {MAX_CHANNELS} at most")
        for name in _KERNELS[1:]:
            self._kernels.check_resident(name, self.parts * shape.channels)
        if call.experts > self.world * MAX_LOCAL_EXPERTS or call.experts % self.world:
            raise SessionError(f"{call.experts} experts do not spread over {self.world} ranks")
        self.buffer.shape = _Shape(*(getattr(shape, n) for n in ChannelShape.__dataclass_fields__))
        if call.told:
            self.told.words[0] = 0
        self._kernels.launch("channels_meet", 1, stream, self.buffer, call)

    def await_told(self, local_experts: int) -> tuple[int, list[int]]:
        """Rows that come, and of each expert; raises Timeout when a rank does not come."""
        words, end = self.told.words, time.monotonic() + self._timeout_s + 1
        while words[0] == 0:
            why = self.failure()
            if self._abort is not None and self._abort.reason is not None:
                raise SessionError(self._abort.reason)
            if why is not None or time.monotonic() > end:
                raise Timeout(
                    why or f"rank {self.rank} did not begin a call in {self._timeout_s} s"
                )
            time.sleep(0)
        return int(words[1]), [int(word) for word in words[2 : 2 + local_experts]]

    def dispatch(self, call: ChannelDispatch, *, stream: int) -> None:
        """Launches, after meet() on the same stream."""
        blocks = self.parts * self.buffer.shape.channels
        self._kernels.launch("channels_dispatch", blocks, stream, self.buffer, call)

    def combine(self, call: ChannelCombine, *, stream: int) -> None:
        """Launches, after meet() on the same stream."""
        blocks = self.parts * self.buffer.shape.channels
        self._kernels.launch("channels_combine", blocks, stream, self.buffer, call)

    def failure(self) -> str | None:
        """What a kernel of this buffer waited for in vain, if one has, or why it was aborted."""
        if self._abort is not None and self._abort.reason is not None:
            return self._abort.reason
        word = self._alarm.words[0]
        if word == 0:
            return None
        return f"rank {self.rank} waited in vain for {_AWAITED[word >> 32]} of rank {word & 65535}"

    def lost_ring(self) -> bool:
        """Whether a kernel gave up a ring in which there was no room; when no kernel runs."""
        return words_at(self._state + 8 * _LOST_RING, 1) != [0]

    def close(self) -> None:
        """After the last kernel of this rank (idempotent). The window of a buffer that has failed
        stays: kernels of others may write there yet."""
        from cuda.bindings import driver

        if self._memory:
            if self.failure() is None:
                self._own.close()
            checked(driver.cuMemFree(self._memory))
            self._alarm.close()
            self.told.close()
        self._memory = 0
