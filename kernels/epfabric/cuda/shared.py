"""GPU memory that other processes can be given, as a file descriptor; for trial and buffer.

It needs neither a shared IPC namespace nor the other process's consent beyond the descriptor.
"""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver

from epfabric.cuda.rank import checked
from epfabric.errors import SessionError

_WORD = 4
_POSIX_FD = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_FABRIC = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC


def check_context() -> None:
    """Raises SessionError where this thread has no CUDA context, or its GPU shares no memory."""
    status, context = driver.cuCtxGetCurrent()
    if status != driver.CUresult.CUDA_SUCCESS or not int(context):
        raise SessionError(
            "no CUDA context is current: have torch.cuda.set_device(), or the like, before join()"
        )
    kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    if not checked(driver.cuDeviceGetAttribute(kind, checked(driver.cuCtxGetDevice()))):
        raise SessionError("the GPU's driver shares no memory by file descriptors")


def no_fabric() -> str:
    """Why the current context's GPU makes no fabric handles; empty where it does.

    They need NVIDIA's IMEX service and one of its channels in this process's container, which only
    an allocation tells. Raises SessionError for what is wrong beyond that.
    """
    kind = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
    if not checked(driver.cuDeviceGetAttribute(kind, checked(driver.cuCtxGetDevice()))):
        return "the GPU or its driver has none"
    properties = _properties(_FABRIC)
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    unit = int(checked(driver.cuMemGetAllocationGranularity(properties, least)))
    try:
        handle = checked(driver.cuMemCreate(unit, properties, 0))
    except SessionError as error:
        return f"{error} (is there an IMEX channel?)"
    try:
        checked(driver.cuMemExportToShareableHandle(handle, _FABRIC, 0))
    except SessionError as error:
        return str(error)
    finally:
        checked(driver.cuMemRelease(handle))
    return ""


def uuid() -> str:
    """Of the current context's GPU; of its instance where that is one of MIG."""
    # Before CUDA 13 the first name is an older call, which says the whole GPU's.
    ask = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
    return bytes(checked(ask(checked(driver.cuCtxGetDevice()))).bytes).hex()


def is_instance() -> bool:
    """Whether the current context's GPU is an instance of MIG, as its name says."""
    name = bytes(checked(driver.cuDeviceGetName(128, checked(driver.cuCtxGetDevice()))))
    return b" MIG " in name.rstrip(b"\0")


class SharedMemory:
    """Memory of a GPU in this process's addresses, for the GPU of the current context."""

    address: int
    size_bytes: int

    def __init__(self, size_bytes: int, *, for_nics: bool = False) -> None:
        """Makes it on that GPU: zeros, of at least so many bytes. for_nics: these write it too."""
        properties = _properties()
        properties.allocFlags.gpuDirectRDMACapable = int(for_nics)
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        unit = int(checked(driver.cuMemGetAllocationGranularity(properties, least)))
        whole = -(-size_bytes // unit) * unit
        self._map(checked(driver.cuMemCreate(whole, properties, 0)), whole)
        try:
            checked(driver.cuMemsetD8(self.address, 0, whole))
            checked(driver.cuCtxSynchronize())  # before anybody else may write
        except SessionError:
            self.close()
            raise

    @classmethod
    def of(cls, fd: int, size_bytes: int) -> SharedMemory:
        """That which another process exported; size_bytes: all of it."""
        memory = cls.__new__(cls)
        memory._map(checked(driver.cuMemImportFromShareableHandle(fd, _POSIX_FD)), size_bytes)
        return memory

    def export(self) -> int:
        """A descriptor, which is the caller's; while one is open somewhere the memory stays."""
        return int(checked(driver.cuMemExportToShareableHandle(self._handle, _POSIX_FD, 0)))

    def read(self, index: int) -> int:
        """A word of 32 bits; when no kernel writes it."""
        word = ctypes.c_uint32()
        source = self.address + _WORD * index
        checked(driver.cuMemcpyDtoH(ctypes.addressof(word), source, _WORD))
        return word.value

    def write(self, index: int, value: int) -> None:
        word = ctypes.c_uint32(value)
        target = self.address + _WORD * index
        checked(driver.cuMemcpyHtoD(target, ctypes.addressof(word), _WORD))

    def close(self) -> None:
        """Once no kernel uses it (idempotent); other processes that have it keep it."""
        if self.address:
            checked(driver.cuMemUnmap(self.address, self.size_bytes))
            checked(driver.cuMemAddressFree(self.address, self.size_bytes))
            checked(driver.cuMemRelease(self._handle))
        self.address = 0

    def _map(self, handle: Any, size_bytes: int) -> None:
        self._handle, self.size_bytes, self.address = handle, size_bytes, 0
        access = driver.CUmemAccessDesc()
        access.location = _here()
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        address, mapped = 0, False
        try:
            address = int(checked(driver.cuMemAddressReserve(size_bytes, 0, 0, 0)))
            checked(driver.cuMemMap(address, size_bytes, 0, handle, 0))
            mapped = True
            checked(driver.cuMemSetAccess(address, size_bytes, [access], 1))
        except SessionError:
            if mapped:
                driver.cuMemUnmap(address, size_bytes)
            if address:
                driver.cuMemAddressFree(address, size_bytes)
            driver.cuMemRelease(handle)
            raise
        self.address = address


def _here() -> Any:
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = int(checked(driver.cuCtxGetDevice()))
    return location


def _properties(kind: Any = _POSIX_FD) -> Any:
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.requestedHandleTypes = kind
    properties.location = _here()
    return properties
