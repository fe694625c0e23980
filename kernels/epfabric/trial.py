"""Whether ranks of a node reach each other's GPU memory: tried while Session.join() waits.

Each rank offers a little memory with a word in it that it made up. When the agent says that all are
there, each imports every other's, reads that word, writes one of its own and reads it back. Without
a CUDA context there is nothing to try, and nothing of CUDA is loaded.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from types import TracebackType
from typing import Protocol

from epfabric import messages
from epfabric.broker import Broker
from epfabric.errors import SessionError
from epfabric.identity import uses_cuda

NAME = "trial"  # the agent looks for it
TRIAL_BYTES = 32 << 10  # a word of each rank, and one more
FAULTS = (SessionError, OSError, RuntimeError)
"""Of a Maker or its memory: cuda.bindings raises RuntimeError for what an old driver lacks."""


class Memory(Protocol):
    """Some memory that several processes reach; `address` is this one's."""

    address: int
    size_bytes: int

    def export(self) -> int:
        """A descriptor of it, which is the caller's."""

    def read(self, index: int) -> int:
        """A word of 32 bits."""

    def write(self, index: int, value: int) -> None: ...

    def close(self) -> None: ...


class Maker(Protocol):
    """Each raises one of FAULTS that says why it cannot."""

    def name(self) -> str:
        """Of the device that has the memory."""

    def make(self, size_bytes: int) -> Memory:
        """Zeros, at least so many."""

    def reach(self, fd: int, size_bytes: int) -> Memory:
        """What another rank exported."""

    def fabric(self) -> str:
        """Why the device makes no handles that other nodes of an NVLink domain could use; empty
        where it does."""


class Cuda:
    """Memory of the GPU whose context is current."""

    def name(self) -> str:
        from epfabric.cuda import shared

        return shared.uuid()

    def make(self, size_bytes: int) -> Memory:
        if not uses_cuda():
            raise SessionError("this process uses no GPU")
        try:
            from epfabric.cuda import shared
        except ImportError as error:
            raise SessionError(f"{error}: install 'epfabric[cuda]'") from error
        shared.check_context()
        return shared.SharedMemory(size_bytes)

    def reach(self, fd: int, size_bytes: int) -> Memory:
        from epfabric.cuda import shared

        return shared.SharedMemory.of(fd, size_bytes)

    def fabric(self) -> str:
        from epfabric.cuda import shared

        return shared.no_fabric()


def said(error: BaseException) -> str:
    """Never empty: an empty text means that nothing is wrong."""
    return str(error) or type(error).__name__


class Trial:
    """A context around join. `result`: posix_fd or none, and why. `ranks`: those of this node that
    offer GPU memory, as all of them are told."""

    def __init__(self, broker: Broker, rank: int, maker: Maker) -> None:
        self._broker, self._rank, self._maker = broker, rank, maker
        self._memory: Memory | None = None
        self._offered = False
        self._word = secrets.randbits(32)
        self.ranks: tuple[int, ...] = (rank,)
        self.result: tuple[messages.NvlinkKind, str] = (
            "none",
            "no other rank of this node offers GPU memory",
        )

    def __enter__(self) -> Trial:
        try:
            self._offer()
        except FAULTS as error:
            self.result = ("none", said(error))
        return self

    def run(self, ranks: tuple[int, ...]) -> None:
        """Tries the memory of these ranks, this one's among them, and tells the agent."""
        others = [rank for rank in ranks if rank != self._rank]
        if not self._offered:
            return  # the agent is mistaken
        self.ranks = ranks
        try:
            for rank in others:
                self._try(rank)
            self._broker.fabric = self._fabric()
            text = f"wrote to the GPU memory of {len(others)} other rank(s)"
            self.result = ("posix_fd", f"{text}; {self._broker.fabric}")
        except FAULTS as error:
            self.result = ("none", said(error))
        with contextlib.suppress(SessionError):  # what is wrong then, join() says
            self._broker.report(*self.result)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._offered:
            with contextlib.suppress(SessionError):
                self._broker.withdraw(NAME)
        if self._memory is not None:
            with contextlib.suppress(*FAULTS):
                self._memory.close()

    def _offer(self) -> None:
        memory = self._memory = self._maker.make(TRIAL_BYTES)
        memory.write(0, self._word)
        fd = memory.export()
        try:
            self._broker.offer(NAME, fd, memory.size_bytes, str(self._word))
            self._offered = True
        finally:
            os.close(fd)

    def _fabric(self) -> str:
        """For the status alone: within a node descriptors reach all that such handles would."""
        try:
            why = self._maker.fabric()
        except FAULTS as error:
            why = said(error)
        return (
            f"no fabric handles: {why}" if why else "fabric handles can be made, and are not used"
        )

    def _try(self, rank: int) -> None:
        found = self._broker.find(rank, NAME)
        try:
            memory = self._maker.reach(found.fd, found.size_bytes)
        except FAULTS as error:
            raise SessionError(
                f"the GPU memory of rank {rank} cannot be reached: {said(error)}"
            ) from error
        finally:
            os.close(found.fd)
        try:
            if str(memory.read(0)) != found.note:
                raise SessionError(f"what is reached is not the GPU memory of rank {rank}")
            word = secrets.randbits(32)
            memory.write(1 + self._rank, word)
            if memory.read(1 + self._rank) != word:
                raise SessionError(f"what is written to the GPU memory of rank {rank} is lost")
        finally:
            memory.close()
