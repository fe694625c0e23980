"""Memory of a GPU that a rank offers to its fabric; made by Session.register_gpu()."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cuda.bindings import driver

from epfabric.cuda.rank import checked
from epfabric.cuda.shared import SharedMemory, check_context
from epfabric.errors import SessionError

# What a NIC wrote is seen by kernels once its agent says that it came; older GPUs need a flush
# between, which agents do not do.
LEAST_CAPABILITY = 9
_DMA_BUF = driver.CUmemRangeHandleType.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD


@dataclass(frozen=True)
class GpuRegion:
    """offset: where the region begins in the rank's offset space. Its memory stays while the
    process lives, unless close() is called after the session ended."""

    offset: int
    memory: SharedMemory

    @property
    def address(self) -> int:
        return self.memory.address

    @property
    def size_bytes(self) -> int:
        return self.memory.size_bytes

    def close(self) -> None:
        """After the session's end, and the last kernel that uses it (idempotent)."""
        self.memory.close()


def made(size_bytes: int, register: Callable[[int, int], int]) -> GpuRegion:
    """register: says where it begins, given a dma-buf, which it closes, and its size in bytes."""
    memory = SharedMemory(checked_size(size_bytes), for_nics=True)
    try:
        asked = driver.cuMemGetHandleForAddressRange(memory.address, memory.size_bytes, _DMA_BUF, 0)
        return GpuRegion(register(int(checked(asked)), memory.size_bytes), memory)
    except BaseException:
        memory.close()
        raise


def checked_size(size_bytes: int) -> int:
    """Raises SessionError where the current context's GPU has no such memory."""
    if size_bytes < 1:
        raise ValueError(f"a region of {size_bytes} bytes cannot be registered")
    check_context()
    device, ask = checked(driver.cuCtxGetDevice()), driver.CUdevice_attribute
    major = checked(
        driver.cuDeviceGetAttribute(ask.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
    )
    if major < LEAST_CAPABILITY:
        raise SessionError(
            f"the GPU's compute capability is {major}.x, and regions in GPU memory need "
            f"{LEAST_CAPABILITY}.0: use register()"
        )
    if not checked(driver.cuDeviceGetAttribute(ask.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device)):
        raise SessionError(
            "the GPU's driver exports no dma-bufs (it has to be the one with open kernel modules): "
            "use register()"
        )
    return size_bytes
