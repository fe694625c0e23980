"""Memory that a rank offers to its fabric; made by Session.register()."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from epfabric.errors import SessionError
from epfabric.limits import PAGE_BYTES


@dataclass(frozen=True)
class Region:
    """offset: where the region begins in the rank's offset space; array: its bytes."""

    offset: int
    array: NDArray[np.uint8]

    @property
    def size_bytes(self) -> int:
        return self.array.nbytes

    def view(self, start: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
        """The bytes from start on as an array of shape and dtype; writes go to the region."""
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return self.array[start : start + count].view(dtype).reshape(shape)


def make_memfd(size_bytes: int) -> tuple[int, NDArray[np.uint8]]:
    """A sealable memfd of whole pages, each of them present, and its bytes.

    The pages are taken here so that they are charged to this process and hold no holes, which the
    agent would refuse. The caller closes the descriptor; the array keeps the mapping alive.
    """
    if size_bytes < 1:
        raise ValueError(f"a region of {size_bytes} bytes cannot be registered")
    whole = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
    fd = os.memfd_create("epfabric-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, whole)
        mapped = mmap.mmap(fd, whole, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        os.close(fd)
        raise SessionError(
            f"no memory for a region of {whole} bytes ({error.strerror}): "
            "raise the pod's memory limit or register less"
        ) from error
    array = np.frombuffer(mapped, np.uint8)
    array[::PAGE_BYTES] = 0
    return fd, array
