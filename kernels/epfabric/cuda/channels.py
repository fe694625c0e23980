"""High-throughput dispatch and combine of one rank within a node; for epfabric.buffer.

Arrays are addresses in GPU memory, streams are handles. Layouts are those of channels.h,
channel_dispatch.cuh and channel_combine.cuh.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass

from epfabric.cuda.abort import Abort
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.rank import HostWords, Memory, OwnMemory, checked, copy_in, zeros
from epfabric.errors import SessionError, Timeout

SOURCE = "channels.cu"
MAX_CHANNELS = MAX_RANKS = 64
MAX_LOCAL_EXPERTS = 1024
_WORDS = MAX_CHANNELS * MAX_RANKS * 8
_RINGS = MAX_RANKS * 8 + MAX_RANKS * MAX_LOCAL_EXPERTS * 4 + 4 * _WORDS
_STATE_WORDS = 3
LEAST_SLOTS = 4
_AWAITED = ("nothing", "a call", "free slots", "tokens", "rows")
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
    def bytes(self) -> int:
        """Of the window."""
        return _RINGS + self.channels * self.world * self.slots * self.slot_bytes


def fitting(
    window_bytes: int, world: int, channels: int, slots: int, topk: int, scales: int, row_bytes: int
) -> ChannelShape:
    """With as many slots as there is room for, `slots` at most. Raises SessionError for too few."""
    one = ChannelShape(world, channels, 1, topk, scales, row_bytes)
    room = (window_bytes - _RINGS) // (channels * world * one.slot_bytes)
    if room < LEAST_SLOTS:
        needed = _RINGS + channels * world * LEAST_SLOTS * one.slot_bytes
        raise SessionError(
            f"{channels} channels for tokens of {row_bytes} bytes need {needed} bytes of every "
            f"rank, this buffer has {window_bytes}"
        )
    return ChannelShape(world, channels, min(slots, room), topk, scales, row_bytes)


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
        ("reserved", ctypes.c_uint32),
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
        *((name, ctypes.c_uint32) for name in ("count", "local_experts", "rows", "reserved")),
    ]  # fmt: skip


class ChannelCombine(ctypes.Structure):
    """Mirror of epfabric::ChannelCombine, which says what each array holds."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "rows", "weights", "firsts", "channel_firsts", "positions", "bias", "second_bias",
                "combined", "combined_weights",
            )
        ),
        *((name, ctypes.c_uint32) for name in ("count", "reserved")),
    ]  # fmt: skip


class Channels:
    """One rank's end. Make it, tell every rank's `window` to every other, then `connect`.

    A CUDA context must be current. All ranks make the same calls in the same order. memory: as
    that of LowLatency, and abort.
    """

    def __init__(
        self, world: int, rank: int, kernels: Kernels, *, window_bytes: int, timeout_s: float,
        memory: Memory | None = None, abort: Abort | None = None,
    ) -> None:  # fmt: skip
        if not 0 <= rank < world <= MAX_RANKS:
            raise SessionError(f"rank {rank} is not one of {world} (at most {MAX_RANKS})")
        for name in _KERNELS:
            kernels.function(name)
        self.world, self.rank, self.window_bytes = world, rank, window_bytes
        self._kernels, self._timeout_s, self._abort = kernels, timeout_s, abort
        self._own = memory or OwnMemory(window_bytes)
        self.window = self._own.address
        self._alarm = HostWords(1)
        self.told = HostWords(2 + MAX_LOCAL_EXPERTS)
        lengths = (world, _STATE_WORDS, 1)
        self._memory = zeros(8 * sum(lengths))
        self._windows, state, zero = (self._memory + 8 * sum(lengths[:i]) for i in range(3))
        self.buffer = ChannelBuffer(
            windows=self._windows,
            state=state,
            alarm=self._alarm.address,
            aborts=(abort.address if abort is not None else zero, zero),
            timeout_ns=int(timeout_s * 1e9),
            rank=rank,
        )

    def connect(self, windows: Sequence[int]) -> None:
        """windows: by rank, the address at which this GPU reaches that rank's `window`."""
        if len(windows) != self.world:
            raise SessionError(f"{len(windows)} windows for {self.world} ranks")
        copy_in(self._windows, (ctypes.c_uint64 * len(windows))(*windows))

    def meet(self, shape: ChannelShape, call: MeetCall, *, stream: int) -> None:
        """Launches what every call begins with, and fixes the call's shape."""
        if shape.channels > MAX_CHANNELS:
            raise SessionError(f"{shape.channels} channels: {MAX_CHANNELS} at most")
        for name in _KERNELS[1:]:
            self._kernels.check_resident(name, 2 * shape.channels)
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
        channels = self.buffer.shape.channels
        self._kernels.launch("channels_dispatch", 2 * channels, stream, self.buffer, call)

    def combine(self, call: ChannelCombine, *, stream: int) -> None:
        """Launches, after meet() on the same stream."""
        channels = self.buffer.shape.channels
        self._kernels.launch("channels_combine", 2 * channels, stream, self.buffer, call)

    def fill(self, address: int, size_bytes: int, *, stream: int) -> None:
        """With ones in every bit: -1 in integers."""
        from cuda.bindings import driver

        if size_bytes:
            checked(driver.cuMemsetD8Async(address, 0xFF, size_bytes, stream))

    def failure(self) -> str | None:
        """What a kernel of this buffer waited for in vain, if one has, or why it was aborted."""
        if self._abort is not None and self._abort.reason is not None:
            return self._abort.reason
        word = self._alarm.words[0]
        if word == 0:
            return None
        return f"rank {self.rank} waited in vain for {_AWAITED[word >> 32]} of rank {word & 65535}"

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
