"""Low-latency dispatch and combine of one rank over memory that its peers' kernels can reach.

For the buffers that applications use. Arrays are addresses in GPU memory, streams are handles:
nothing here knows an array library. Layouts and meanings of the arrays are those of dispatch.cuh
and combine.cuh. No call waits on the host or copies between host and GPU, so that each can be
captured into a CUDA graph; what changes from call to call lies in GPU memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.resources import files
from types import TracebackType
from typing import Any

from epfabric.cuda import compiler
from epfabric.cuda.rank import checked, copy_in
from epfabric.cuda.window import MAX_RANKS, Shape, window_of
from epfabric.errors import SessionError

THREADS = 1024  # of a block
SEND, RECEIVE = 1, 2
_AWAITED = ("nothing", "room", "tokens", "weights", "rows")
_STATE_WORDS = 10
_FAILED = 9  # its place among them


class DeviceBuffer(ctypes.Structure):
    """Mirror of epfabric::DeviceBuffer."""

    _fields_ = [
        ("windows", ctypes.c_uint64),
        ("state", ctypes.c_uint64),
        ("messages", ctypes.c_uint64),
        ("counts", ctypes.c_uint64),
        ("masked", ctypes.c_uint64),
        ("aborts", ctypes.c_uint64 * 2),
        ("timeout_ns", ctypes.c_uint64),
        ("shape", ctypes.c_uint32 * 5),
        ("rank", ctypes.c_uint32),
        ("mask", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class DispatchCall(ctypes.Structure):
    """Mirror of epfabric::DispatchCall, which says what each array holds."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in (
                "tokens", "topk", "weights", "sent", "received", "scales", "expert_counts",
                "source_tokens", "ranges", "receipts", "source_messages", "sums",
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
            )
        ),
        *((name, ctypes.c_uint32) for name in ("count", "k", "phases")),
    ]  # fmt: skip


class Kernels:
    """The compiled kernels in the current context."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        device = checked(driver.cuCtxGetDevice())
        attribute = driver.CUdevice_attribute
        major, minor, self.processors = (
            int(checked(driver.cuDeviceGetAttribute(which, device)))
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            )
        )
        source = files("epfabric.cuda").joinpath("low_latency.cu").read_text()
        code = compiler.cubin(source, "low_latency.cu", f"sm_{major}{minor}")
        self._module = checked(driver.cuModuleLoadData(code))
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        from cuda.bindings import driver

        if name not in self._functions:
            found = checked(driver.cuModuleGetFunction(self._module, name.encode()))
            self._functions[name] = found
        return self._functions[name]

    def check_resident(self, name: str, blocks: int) -> None:
        """Raises SessionError where a grid of so many blocks would wait for blocks not started."""
        from cuda.bindings import driver

        each = checked(
            driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function(name), THREADS, 0)
        )
        if not 1 <= blocks <= each * self.processors:
            raise SessionError(
                f"{blocks} blocks cannot be on the GPU at once: it has room for "
                f"{each * self.processors} of {name}"
            )

    def launch(self, name: str, blocks: int, stream: int, *values: Any) -> None:
        """values: ctypes objects, which are copied at once."""
        from cuda.bindings import driver

        parameters = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        checked(
            driver.cuLaunchKernel(
                self.function(name), blocks, 1, 1, THREADS, 1, 1, 0, stream,
                ctypes.addressof(parameters), 0,
            )
        )  # fmt: skip


class LowLatency:
    """One rank's end. Make it, tell every rank's `window` to every other, then `connect`.

    A CUDA context must be current. All ranks make the same calls in the same order. blocks: of
    each grid; the ranks that share a GPU share its processors. timeout_s: of every wait inside a
    kernel; afterwards the rank waited for is masked (mask=True) or the buffer has failed.
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
        aborts: tuple[int, int] | None = None,
    ) -> None:
        for name in ("dispatch_bf16", "dispatch_fp8", "combine"):
            kernels.check_resident(name, blocks)
        if not 0 <= rank < shape.world <= MAX_RANKS:
            raise SessionError(f"rank {rank} is not one of {shape.world}")
        self.shape, self.rank, self.blocks = shape, rank, blocks
        self._kernels = kernels
        self._bytes = window_of(shape).bytes
        self.window = _zeros(self._bytes)
        # One allocation: windows, state, messages, counts, masked, a word of zeros.
        sizes = [8 * n for n in (shape.world, _STATE_WORDS, shape.world, shape.experts)]
        sizes += [8 * shape.world, 8]
        self._memory = _zeros(sum(sizes))
        self._windows, self._state, messages, counts, self._masked, zero = (
            self._memory + sum(sizes[:i]) for i in range(len(sizes))
        )
        self._buffer = DeviceBuffer(
            windows=self._windows,
            state=self._state,
            messages=messages,
            counts=counts,
            masked=self._masked,
            aborts=aborts or (zero, zero),
            timeout_ns=int(timeout_s * 1e9),
            shape=(shape.world, shape.experts, shape.tokens, shape.hidden, shape.topk),
            rank=rank,
            mask=int(mask),
        )

    def connect(self, windows: Sequence[int]) -> None:
        """windows: by rank, the address at which this GPU reaches that rank's `window`."""
        if len(windows) != self.shape.world:
            raise SessionError(f"{len(windows)} windows for {self.shape.world} ranks")
        copy_in(self._windows, (ctypes.c_uint64 * len(windows))(*windows))

    def dispatch(self, call: DispatchCall, *, fp8: bool, stream: int) -> None:
        """Launches; the arrays must live until the kernel has ended."""
        self._check(call.count, call.k)
        name = "dispatch_fp8" if fp8 else "dispatch_bf16"
        self._kernels.launch(name, self.blocks, stream, self._buffer, call)

    def combine(self, call: CombineCall, *, stream: int) -> None:
        """Launches; `sent`, `receipts` and `source_messages` are those of the dispatch.

        Without `weights`, those that every rank gave to the dispatch; all ranks do the same.
        """
        self._check(call.count, call.k)
        self._kernels.launch("combine", self.blocks, stream, self._buffer, call)

    def failure(self) -> str | None:
        """What the buffer's kernels waited for in vain; when none runs."""
        word = _words(self._state, _STATE_WORDS)[_FAILED]
        if word == 0:
            return None
        what, other = _AWAITED[word >> 32], word & 0xFFFFFFFF
        return f"rank {self.rank} waited in vain for {what} of rank {other}"

    def masked(self) -> frozenset[int]:
        """Ranks that nothing goes to or comes from; when no kernel runs."""
        words = _words(self._masked, self.shape.world)
        return frozenset(rank for rank, word in enumerate(words) if word)

    def set_mask(self, rank: int, masked: bool, *, stream: int) -> None:
        """From the next kernel of that stream on."""
        from cuda.bindings import driver

        if not 0 <= rank < self.shape.world:
            raise SessionError(f"rank {rank} is not one of {self.shape.world}")
        checked(driver.cuMemsetD32Async(self._masked + 8 * rank, int(masked), 1, stream))

    def close(self) -> None:
        """After the last kernel of any rank that uses it (idempotent)."""
        from cuda.bindings import driver

        if self._memory:
            checked(driver.cuMemFree(self._memory))
            checked(driver.cuMemFree(self.window))
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

    def _check(self, count: int, k: int) -> None:
        if not 0 <= count <= self.shape.tokens:
            raise SessionError(f"{count} tokens: this buffer was made for {self.shape.tokens}")
        if not 1 <= k <= self.shape.topk:
            raise SessionError(f"top-{k}: this buffer was made for top-{self.shape.topk}")


def _zeros(size_bytes: int) -> int:
    from cuda.bindings import driver

    address = int(checked(driver.cuMemAlloc(size_bytes)))
    checked(driver.cuMemsetD8(address, 0, size_bytes))
    return address


def _words(address: int, count: int) -> list[int]:
    from cuda.bindings import driver

    words = (ctypes.c_uint64 * count)()
    checked(driver.cuMemcpyDtoH(ctypes.addressof(words), address, ctypes.sizeof(words)))
    return list(words)
