"""The ranks of a buffer: who they are, and how each reaches the others' memory; for Buffer."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epfabric.cuda.rank import checked
from epfabric.errors import SessionError

_PROCESS = secrets.token_hex(16)  # of this process: a forked child must not use its parent's GPU
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Members:
    """gather(object): what each rank gave, by rank."""

    rank: int
    size: int
    gather: Callable[[Any], list[Any]]


def members_of(group: Any, comm: Any) -> Members:
    """group: a process group of torch.distributed. comm: of mpi4py, or with three of its methods.

    Raises ValueError when both are None.
    """
    if group is not None:

        def gather(value: Any) -> list[Any]:
            import torch.distributed as distributed

            values: list[Any] = [None] * group.size()
            distributed.all_gather_object(values, value, group)
            return values

        return Members(group.rank(), group.size(), gather)
    if comm is not None:
        return Members(comm.Get_rank(), comm.Get_size(), comm.allgather)
    raise ValueError("either group or comm is needed")


@dataclass(frozen=True)
class Offer:
    """What a rank tells of a piece of its GPU's memory."""

    node: str
    process: str
    gpu: str
    address: int
    handle: bytes


def offer(address: int) -> Offer:
    """address: as cuMemAlloc returned it, in the current context."""
    from cuda.bindings import driver

    gpu = checked(driver.cuDeviceGetUuid(checked(driver.cuCtxGetDevice())))
    handle = checked(driver.cuIpcGetMemHandle(address))
    return Offer(
        node=_BOOT_ID.read_text().strip(),
        process=f"{os.getpid()} {_PROCESS}",
        gpu=bytes(gpu.bytes).hex(),
        address=address,
        handle=bytes(handle.reserved),
    )


class Opened:
    """The memory of all ranks, as this one reaches it: `addresses`, by rank."""

    def __init__(self) -> None:
        self.addresses: list[int] = []
        self._imported: list[int] = []

    def open(self, offers: Sequence[Offer], rank: int) -> None:
        """Raises SessionError for what cannot be reached; what was opened before stays so."""
        own = offers[rank]
        for number, other in enumerate(offers):
            if other.node != own.node:
                raise SessionError(
                    f"rank {number} is on another node: only ranks of one node can have a buffer "
                    "yet"
                )
            if other.process != own.process:
                self.addresses.append(self._open(other, number))
                continue
            if other.gpu != own.gpu:
                raise SessionError(
                    f"ranks {rank} and {number} are one process with two GPUs: start a process "
                    "for each GPU"
                )
            self.addresses.append(other.address)

    def _open(self, other: Offer, number: int) -> int:
        from cuda.bindings import driver

        handle = driver.CUipcMemHandle()
        handle.reserved = other.handle
        peers = driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        try:
            address = int(checked(driver.cuIpcOpenMemHandle(handle, peers)))
        except SessionError as error:
            raise SessionError(
                f"the GPU memory of rank {number} cannot be reached ({error}): the processes must "
                "share an IPC namespace and see each other's GPUs"
            ) from error
        self._imported.append(address)
        return address

    def close(self) -> None:
        """Once no kernel uses it (idempotent)."""
        from cuda.bindings import driver

        while self._imported:
            checked(driver.cuIpcCloseMemHandle(self._imported.pop()))
