"""A session's rings on the GPU: host memory mapped for the device, and DeviceRank of rank.cuh."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from epfabric.errors import SessionError
from epfabric.layout import Layout

TIMEOUT_S = 10.0
_MAPPED = 0x02  # CU_MEMHOSTREGISTER_DEVICEMAP
_READ_ONLY = 0x08  # CU_MEMHOSTREGISTER_READ_ONLY: the agent's segment


class DeviceRank(ctypes.Structure):
    """Mirror of epfabric::DeviceRank; addresses are those of the GPU."""

    _fields_ = [
        ("pod", ctypes.c_uint64),
        ("agent", ctypes.c_uint64),
        ("heads", ctypes.c_uint64),
        ("seen_tails", ctypes.c_uint64),
        ("timeout_ns", ctypes.c_uint64),
        ("rings", ctypes.c_uint32),
        ("depth", ctypes.c_uint32),
        ("signals", ctypes.c_uint32),
        ("world", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


@dataclass(frozen=True)
class Segments:
    """Where the session's two segments lie in this process (addresses), and their shape."""

    pod: int
    agent: int
    layout: Layout
    rings: int
    depth: int
    signals: int
    world: int
    rank: int


class Mapped:
    """Host memory that the GPU can reach while this lives; `address` is the GPU's."""

    def __init__(self, address: int, size_bytes: int, *, read_only: bool = False) -> None:
        from cuda.bindings import driver

        self._host = address
        flags = _MAPPED | (_READ_ONLY if read_only else 0)
        checked(driver.cuMemHostRegister(address, size_bytes, flags))
        self.address = int(checked(driver.cuMemHostGetDevicePointer(address, 0)))

    def close(self) -> None:
        from cuda.bindings import driver

        if self._host:
            checked(driver.cuMemHostUnregister(self._host))
        self._host = 0


class HostWords:
    """`words` of 8 bytes in this process that kernels store into: zeros at first."""

    def __init__(self, count: int) -> None:
        from cuda.bindings import driver

        portable_and_mapped = 3
        self.address = int(checked(driver.cuMemHostAlloc(8 * count, portable_and_mapped)))
        self.words = (ctypes.c_uint64 * count).from_address(self.address)
        self.words[:] = [0] * count

    def close(self) -> None:
        """After the last kernel that uses them (idempotent)."""
        from cuda.bindings import driver

        if self.address:
            self.words = type(self.words)(*self.words)
            checked(driver.cuMemFreeHost(self.address))
        self.address = 0


class RankOnDevice:
    """Makes a session's rings usable by kernels: pass `address` as their `const DeviceRank*`.

    A CUDA context must be current. Only the GPU may push to these rings from now on: their heads
    lie in its memory, and begin where `heads` (tickets, by ring) says.
    """

    def __init__(
        self, segments: Segments, heads: list[int] | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        from cuda.bindings import driver

        if segments.depth < 64:
            raise SessionError(
                f"a ring of {segments.depth} slots is too short for a warp: 64 are needed"
            )
        starts = heads or [0] * segments.rings
        self._pod = Mapped(segments.pod, segments.layout.pod_bytes)
        self._agent = Mapped(segments.agent, segments.layout.agent_bytes, read_only=True)
        # Where the tails are is not known: at least here, so that a first push looks.
        seen = (max(0, start - segments.depth) for start in starts)
        words = (ctypes.c_uint64 * (2 * segments.rings))(*starts, *seen)
        size = ctypes.sizeof(DeviceRank) + ctypes.sizeof(words)
        self.address = int(checked(driver.cuMemAlloc(size)))
        self._heads = self.address + ctypes.sizeof(DeviceRank)
        self._rings = segments.rings
        rank = DeviceRank(
            pod=self._pod.address,
            agent=self._agent.address,
            heads=self._heads,
            seen_tails=self._heads + 8 * segments.rings,
            timeout_ns=int(timeout_s * 1e9),
            rings=segments.rings,
            depth=segments.depth,
            signals=segments.signals,
            world=segments.world,
            rank=segments.rank,
        )
        copy_in(self.address, rank)
        copy_in(self._heads, words)

    @property
    def pod_address(self) -> int:
        """Where the GPU sees the pod's segment."""
        return self._pod.address

    @property
    def agent_address(self) -> int:
        return self._agent.address

    @property
    def heads_address(self) -> int:
        """Of the words in GPU memory, by ring."""
        return self._heads

    def heads(self) -> list[int]:
        """The ticket of each ring's next command; when no kernel runs."""
        return words_at(self._heads, self._rings)

    def close(self) -> None:
        """After the last kernel that uses it (idempotent)."""
        from cuda.bindings import driver

        if self.address:
            checked(driver.cuMemFree(self.address))
            self._pod.close()
            self._agent.close()
        self.address = 0

    def __enter__(self) -> RankOnDevice:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def checked(result: Any) -> Any:
    """The value of a driver call; SessionError with the driver's name for what went wrong."""
    from cuda.bindings import driver

    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        _, name = driver.cuGetErrorName(status)
        _, text = driver.cuGetErrorString(status)
        raise SessionError(f"CUDA: {name.decode()}: {text.decode()}")
    return values[0] if len(values) == 1 else tuple(values) or None


def copy_in(address: int, data: ctypes.Structure | ctypes.Array[Any]) -> None:
    """Copies to GPU memory; returns when it is there."""
    from cuda.bindings import driver

    checked(driver.cuMemcpyHtoD(address, ctypes.addressof(data), ctypes.sizeof(data)))


def zeros(size_bytes: int) -> int:
    """The address of GPU memory that cuMemFree gives back."""
    from cuda.bindings import driver

    address = int(checked(driver.cuMemAlloc(size_bytes)))
    checked(driver.cuMemsetD8(address, 0, size_bytes))
    return address


def words_at(address: int, count: int) -> list[int]:
    """Of 8 bytes in GPU memory; when no kernel writes them."""
    from cuda.bindings import driver

    words = (ctypes.c_uint64 * count)()
    checked(driver.cuMemcpyDtoH(ctypes.addressof(words), address, ctypes.sizeof(words)))
    return list(words)


class Memory(Protocol):
    """A piece of GPU memory that lives until close()."""

    address: int

    def close(self) -> None: ...


class OwnMemory:
    """Memory of this GPU that ranks of this process reach, and others by an IPC handle: zeros."""

    def __init__(self, size_bytes: int) -> None:
        self.address = zeros(size_bytes)

    def close(self) -> None:
        """Once no kernel uses it (idempotent)."""
        from cuda.bindings import driver

        if self.address:
            checked(driver.cuMemFree(self.address))
        self.address = 0
