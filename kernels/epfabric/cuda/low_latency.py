"""Low-latency dispatch and combine of one rank: its peers on the node by memory that their kernels
reach, others by its agent.

For the buffers that applications use. Arrays are addresses in GPU memory, streams are handles:
nothing here knows an array library. Layouts and meanings of the arrays are those of dispatch.cuh
and combine.cuh. No call waits on the host or copies between host and GPU, so that each can be
captured into a CUDA graph; what changes from call to call lies in GPU memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from epfabric.cuda.abort import Abort
from epfabric.cuda.kernels import Kernels, Launch
from epfabric.cuda.rank import HostWords, Memory, OwnMemory, checked, copy_in, words_at, zeros
from epfabric.cuda.window import MAX_EXPERTS, MAX_RANKS, Shape, region_bytes, window_of
from epfabric.errors import SessionError

SOURCE = "low_latency.cu"
SEND, RECEIVE = 1, 2
SIGNAL_WORDS = 5  # that a buffer has of each peer which the agent reaches
_AWAITED = ("nothing", "room", "tokens", "weights", "rows", "room", "room in the ring")
_STATE_WORDS = 6
_CALL_WORDS = 5  # of a block


class DeviceBuffer(ctypes.Structure):
    """Mirror of epfabric::DeviceBuffer."""

    _fields_ = [
        ("windows", ctypes.c_uint64),
        ("state", ctypes.c_uint64),
        ("calls", ctypes.c_uint64),
        ("messages", ctypes.c_uint64),
        ("counts", ctypes.c_uint64),
        ("masked", ctypes.c_uint64),
        ("verdicts", ctypes.c_uint64),
        ("alarm", ctypes.c_uint64),
        ("aborts", ctypes.c_uint64 * 2),
        ("timeout_ns", ctypes.c_uint64),
        ("shape", ctypes.c_uint32 * 5),
        ("rank", ctypes.c_uint32),
        ("mask", ctypes.c_uint32),
        ("first_signal", ctypes.c_uint32),
        ("agent", ctypes.c_uint64),
        ("region", ctypes.c_uint64),
        ("region_offset", ctypes.c_uint64),
        ("first_ring", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class DispatchCall(ctypes.Structure):
    """Mirror of epfabric::DispatchCall, which says what each array holds."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "tokens", "topk", "weights", "sent", "received", "scales", "expert_counts",
                "source_tokens", "ranges", "receipts", "source_messages", "sums", "waits",
            )
        ),
        *(
            (name, ctypes.c_uint32)
            for name in ("count", "k", "phases", "power_scales", "byte_scales")
        ),
    ]  # fmt: skip


class CombineCall(ctypes.Structure):
    """Mirror of epfabric::CombineCall, which says what each array holds."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "rows", "topk", "weights", "sent", "receipts", "source_messages", "combined",
                "waits",
            )
        ),
        *((name, ctypes.c_uint32) for name in ("count", "k", "phases")),
    ]  # fmt: skip


@dataclass(frozen=True)
class Through:
    """The agent, for a rank some of whose peers are reached through it alone.

    rank: address of its DeviceRank. region, size_bytes, offset: memory that every rank has
    registered at this same offset, as the GPU reaches it here. rings: of the rank; those from
    first_ring on are pushed to by kernels alone. first_signal: of as many words as the kernels
    need, which nothing else uses. abort: as the GPU reaches the agent's word.
    """

    rank: int
    region: int
    size_bytes: int
    offset: int
    rings: int
    first_ring: int
    first_signal: int
    abort: int


class LowLatency:
    """One rank's end. Make it, tell every rank's `window` to every other, then `connect`.

    A CUDA context must be current. All ranks make the same calls in the same order. blocks: of
    each grid; the ranks that share a GPU share its processors. timeout_s: of every wait inside a
    kernel; afterwards the rank waited for is masked (mask=True) or the buffer has failed.
    window_bytes: of the window, so that a later shape may need more than the first one. memory:
    the window, of so many zeros, which is closed with this; by default it is made here. abort: ends
    all waits when it is set; the buffer has failed then. through: how the ranks are reached that
    `connect` is given no window of; it lives as long as this. They cannot be unmasked.
    """

    def __init__(
        self,
        shape: Shape,
        rank: int,
        kernels: Kernels,
        *,
        blocks: int,
        timeout_s: float = 10.0,
        mask: bool = False,
        abort: Abort | None = None,
        window_bytes: int = 0,
        memory: Memory | None = None,
        through: Through | None = None,
    ) -> None:
        for name in ("dispatch_bf16", "dispatch_fp8", "combine", "settle"):
            kernels.check_resident(name, blocks)
        if not 0 <= rank < shape.world <= MAX_RANKS:
            raise SessionError(f"rank {rank} is not one of {shape.world}")
        self.shape, self.rank, self.blocks = shape, rank, blocks
        self._kernels, self._abort, self._through = kernels, abort, through
        self.proxied: frozenset[int] = frozenset()
        self.window_bytes = window_bytes or window_of(shape).bytes
        self._check_room(shape)
        self._own = memory or OwnMemory(self.window_bytes)
        self.window = self._own.address
        # One allocation; at its end a word that stays 0.
        self._alarm = HostWords(1)
        world = shape.world
        verdict_words, call_words = len(_AWAITED) * world, _CALL_WORDS * blocks
        lengths = (
            world, _STATE_WORDS, world, MAX_EXPERTS, world, verdict_words, call_words, 1,
        )  # fmt: skip
        self._memory = zeros(8 * sum(lengths))
        self._windows, self._state, messages, counts, self._masked, verdicts, calls, zero = (
            self._memory + 8 * sum(lengths[:i]) for i in range(len(lengths))
        )
        self.buffer = DeviceBuffer(
            windows=self._windows,
            state=self._state,
            calls=calls,
            messages=messages,
            counts=counts,
            masked=self._masked,
            verdicts=verdicts,
            alarm=self._alarm.address,
            aborts=(
                abort.address if abort is not None else zero,
                through.abort if through is not None else zero,
            ),
            timeout_ns=int(timeout_s * 1e9),
            shape=(shape.world, shape.experts, shape.tokens, shape.hidden, shape.topk),
            rank=rank,
            mask=int(mask),
        )
        # A caller of many calls writes one after another here: their launches are prepared.
        self.next_dispatch, self.next_combine = DispatchCall(), CombineCall()
        self._next = {
            name: Launch(kernels, name, blocks, (self.buffer, call))
            for name, call in (
                ("dispatch_bf16", self.next_dispatch),
                ("dispatch_fp8", self.next_dispatch),
                ("combine", self.next_combine),
            )
        }
        if through is not None:
            self.buffer.first_signal = through.first_signal
            self.buffer.agent, self.buffer.region = through.rank, through.region
            self.buffer.region_offset, self.buffer.first_ring = through.offset, through.first_ring

    def connect(self, windows: Sequence[int]) -> None:
        """windows: by rank, the address at which this GPU reaches that rank's `window`; 0 where it
        is reached through the agent."""
        if len(windows) != self.shape.world:
            raise SessionError(f"{len(windows)} windows for {self.shape.world} ranks")
        self.proxied = frozenset(rank for rank, window in enumerate(windows) if not window)
        if self.proxied and self._through is None:
            raise SessionError(f"no agent to reach {sorted(self.proxied)} through")
        copy_in(self._windows, (ctypes.c_uint64 * len(windows))(*windows))

    def reshape(self, shape: Shape, *, stream: int) -> None:
        """From the next call on; all ranks do the same between the same calls, none half done."""
        if shape is self.shape or shape == self.shape:
            return
        if shape.world != self.shape.world:
            raise SessionError(f"this buffer has {self.shape.world} ranks, not {shape.world}")
        self._check_room(shape)
        self.settle(stream=stream)
        self.shape = shape
        self.buffer.shape[:] = (
            shape.world, shape.experts, shape.tokens, shape.hidden, shape.topk,
        )  # fmt: skip

    def settle(self, *, stream: int) -> None:
        """On the stream: waits until all ranks are done with what this one has written so far."""
        self._kernels.launch("settle", 1, stream, self.buffer)

    def dispatch(self, call: DispatchCall, *, fp8: bool, stream: int) -> None:
        """Launches; the arrays must live until the kernel has ended."""
        self._check(call.count, call.k)
        name = "dispatch_fp8" if fp8 else "dispatch_bf16"
        if call is self.next_dispatch:
            self._next[name](stream)
        else:
            self._kernels.launch(name, self.blocks, stream, self.buffer, call)

    def combine(self, call: CombineCall, *, stream: int) -> None:
        """Launches; `sent`, `receipts` and `source_messages` are those of the dispatch.

        Without `weights`, those that every rank gave to the dispatch; all ranks do the same.
        """
        self._check(call.count, call.k)
        if call is self.next_combine:
            self._next["combine"](stream)
        else:
            self._kernels.launch("combine", self.blocks, stream, self.buffer, call)

    def failure(self) -> str | None:
        """What a kernel of this buffer waited for in vain, if one has, or why it was aborted; costs
        no look at the GPU."""
        if self._abort is not None and self._abort.reason is not None:
            return self._abort.reason
        word = self._alarm.words[0]
        if word == 0:
            return None
        what, other = _AWAITED[word >> 32], word & 0xFFFFFFFF
        return f"rank {self.rank} waited in vain for {what} of rank {other}"

    def masked(self) -> frozenset[int]:
        """Ranks that nothing goes to or comes from; when no kernel runs."""
        words = words_at(self._masked, self.shape.world)
        return frozenset(rank for rank, word in enumerate(words) if word)

    def lost_ring(self) -> bool:
        """Whether a kernel gave up a ring in which there was no room; when no kernel runs."""
        world = self.shape.world
        row = 8 * (len(_AWAITED) - 1) * world
        return any(words_at(self.buffer.verdicts + row, world))

    def set_mask(self, rank: int, masked: bool, *, stream: int) -> None:
        """From the next kernel of that stream on."""
        from cuda.bindings import driver

        if not 0 <= rank < self.shape.world:
            raise SessionError(f"rank {rank} is not one of {self.shape.world}")
        if not masked and rank in self.proxied:
            raise SessionError(f"rank {rank} is reached through the agent: it stays masked")
        checked(driver.cuMemsetD32Async(self._masked + 8 * rank, int(masked), 1, stream))
        if masked:
            return
        for kind in range(len(_AWAITED)):  # or what was found of the next call would mask it again
            verdict = self.buffer.verdicts + 8 * (kind * self.shape.world + rank)
            checked(driver.cuMemsetD8Async(verdict, 0, 8, stream))

    def read_mask(self, target: int, *, stream: int) -> None:
        """On the stream: copies to an array of int32 by rank, 1 where it is masked."""
        from cuda.bindings import driver

        copy = driver.CUDA_MEMCPY2D()
        kind = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcMemoryType, copy.srcDevice, copy.srcPitch = kind, self._masked, 8
        copy.dstMemoryType, copy.dstDevice, copy.dstPitch = kind, target, 4
        copy.WidthInBytes, copy.Height = 4, self.shape.world
        checked(driver.cuMemcpy2DAsync(copy, stream))

    def clean_mask(self, *, stream: int) -> None:
        """From the next kernel of that stream on nothing is masked that can be unmasked."""
        from cuda.bindings import driver

        if self.proxied:
            for rank in set(range(self.shape.world)) - self.proxied:
                self.set_mask(rank, False, stream=stream)
            return
        checked(driver.cuMemsetD8Async(self._masked, 0, 8 * self.shape.world, stream))
        verdicts = 8 * len(_AWAITED) * self.shape.world
        checked(driver.cuMemsetD8Async(self.buffer.verdicts, 0, verdicts, stream))

    def close(self) -> None:
        """After the last kernel of this rank (idempotent). The window stays when the buffer has
        failed or a rank is masked: kernels of others may write there yet."""
        from cuda.bindings import driver

        if self._memory:
            if self.failure() is None and not self.masked():
                self._own.close()
            checked(driver.cuMemFree(self._memory))
            self._alarm.close()
        self._memory = 0

    def __enter__(self) -> LowLatency:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _check_room(self, shape: Shape) -> None:
        needed = window_of(shape).bytes
        if needed > self.window_bytes:
            raise SessionError(
                f"{shape} needs {needed} bytes of every rank, this buffer has {self.window_bytes}"
            )
        needed = region_bytes(shape)
        if self._through is not None and needed > self._through.size_bytes:
            raise SessionError(
                f"{shape} needs {needed} bytes of every rank's region, which has "
                f"{self._through.size_bytes}"
            )

    def _check(self, count: int, k: int) -> None:
        if not 0 <= count <= self.shape.tokens:
            raise SessionError(f"{count} tokens: this buffer was made for {self.shape.tokens}")
        if not 1 <= k <= self.shape.topk:
            raise SessionError(f"top-{k}: this buffer was made for top-{self.shape.topk}")
