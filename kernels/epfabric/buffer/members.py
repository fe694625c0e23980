"""The ranks of a buffer: who they are, and how each reaches the others' memory; for the parts of a
buffer."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from epfabric.buffer.attached import Attached, failures
from epfabric.cuda.rank import Memory, OwnMemory, checked
from epfabric.errors import SessionError
from epfabric.session import Session

_PROCESS = secrets.token_hex(16)  # of this process: a forked child must not use its parent's GPU
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Window(Protocol):
    """Memory of the same size at every rank, which all reach once it is made on all.

    own: this rank's, zeros at first; closed by who uses it. addresses: by rank, where this GPU
    reaches that one's; 0: only through the agents. sharers: ranks of this node on this GPU, with
    this one.
    """

    addresses: list[int]
    sharers: int

    @property
    def own(self) -> Memory: ...

    def close(self) -> None:
        """Lets go of the other ranks' memory, once no kernel uses it (idempotent)."""


class Members(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def window(self, size_bytes: int) -> Window:
        """Made by all ranks together. Raises SessionError on all where one cannot,
        or reaches not all: unless those are reached through the agents then."""


@dataclass(frozen=True)
class Gathering:
    """Ranks with a process group of their own. gather(object): what each rank gave, by rank."""

    rank: int
    size: int
    gather: Callable[[Any], list[Any]]

    def window(self, size_bytes: int) -> Window:
        return Opened(self, size_bytes)


def members_of(group: Any, comm: Any, session: Session | None, *, agents: bool = False) -> Members:
    """group: a process group of torch.distributed. comm: of mpi4py, or with three of its methods.
    agents: ranks of a session may be such that only the agents reach.

    Raises ValueError unless one of the three is given.
    """
    if sum(one is not None for one in (group, comm, session)) > 1:
        raise ValueError("only one of group, comm and session can be given")
    if session is not None:
        return Attached(session, agents=agents)
    if group is not None:

        def gather(value: Any) -> list[Any]:
            import torch.distributed as distributed

            values: list[Any] = [None] * group.size()
            distributed.all_gather_object(values, value, group)
            return values

        return Gathering(group.rank(), group.size(), gather)
    if comm is not None:
        return Gathering(comm.Get_rank(), comm.Get_size(), comm.allgather)
    raise ValueError("either group, comm or session is needed")


def size_of(group: Any) -> int:
    """How many ranks there are in what members_of() takes as group, comm or session."""
    if isinstance(group, Session):
        return group.world_size
    for name in ("Get_size", "size"):
        if hasattr(group, name):
            return int(getattr(group, name)())
    raise ValueError("either group, comm or session is needed")


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

    from epfabric.cuda import shared

    handle = checked(driver.cuIpcGetMemHandle(address))
    return Offer(
        node=_BOOT_ID.read_text().strip(),
        process=f"{os.getpid()} {_PROCESS}",
        gpu=shared.uuid(),
        address=address,
        handle=bytes(handle.reserved),
    )


class Opened:
    """A window by CUDA's IPC handles."""

    def __init__(self, members: Gathering, size_bytes: int) -> None:
        from cuda.bindings import driver

        self.own: Memory = OwnMemory(size_bytes)
        self.addresses: list[int] = []
        self._imported: list[int] = []
        checked(driver.cuCtxSynchronize())  # it is zeros before anybody may write
        offers, why = members.gather(offer(self.own.address)), ""
        gpu = offers[members.rank].gpu
        self.sharers = sum(other.gpu == gpu for other in offers)
        try:
            self._open_all(offers, members.rank)
        except SessionError as error:
            why = str(error)
        # Nobody leaves before everybody has opened its memory, and none waits for one that cannot.
        if failed := failures(members.gather(why)):
            self.close()
            self.own.close()
            raise SessionError(failed)

    def _open_all(self, offers: Sequence[Offer], rank: int) -> None:
        """Raises SessionError for what cannot be reached; what was opened before stays so."""
        own = offers[rank]
        for number, other in enumerate(offers):
            if other.node != own.node:
                raise SessionError(
                    f"rank {number} is on another node: give the Buffer a session and a region"
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
                "share an IPC namespace and see each other's GPUs, or give the Buffer a session"
            ) from error
        self._imported.append(address)
        return address

    def close(self) -> None:
        from cuda.bindings import driver

        while self._imported:
            checked(driver.cuIpcCloseMemHandle(self._imported.pop()))
