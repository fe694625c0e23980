"""Ranks of a buffer that are those of a session: its agent hands them each other's memory.

For members. Pods need share no IPC namespace for it: what goes around are file descriptors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from epfabric.errors import SessionError
from epfabric.session import Session
from epfabric.trial import Cuda, Maker, Memory

MEET_S = 300.0  # until every rank has begun to make its buffer
NOTE = 480  # characters that go with a descriptor


class Attached:
    """`session` has joined."""

    def __init__(self, session: Session) -> None:
        if session.epoch is None:
            raise SessionError("a Buffer's session has to have joined its group before")
        self._session = session

    @property
    def rank(self) -> int:
        return self._session.rank

    @property
    def size(self) -> int:
        return self._session.world_size

    def window(self, size_bytes: int) -> Brokered:
        return Brokered(self._session, size_bytes, Cuda())


def failures(said: Iterable[str]) -> str:
    """What went wrong at which rank, by what each says; empty where nothing did."""
    return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(said) if text)


class Brokered:
    """A window by descriptors. Afterwards the agent holds none of it."""

    def __init__(self, session: Session, size_bytes: int, maker: Maker) -> None:
        memory = self.own = maker.make(size_bytes)
        self.addresses: list[int] = []
        self.sharers = 0
        self._session, self._maker = session, maker
        self._imported: list[Memory] = []
        gpu, why = maker.name(), ""
        with self._offered(memory, gpu) as name:
            try:
                self._reach_all(name, gpu)
            except SessionError as error:
                why = str(error)
            with self._offered(memory, why[:NOTE]) as verdicts:
                failed = failures(self._said(verdicts))
                session.barrier()  # nobody withdraws before everybody has all
        self._report(failed)
        if failed:
            self.close()
            memory.close()
            raise SessionError(failed)

    def close(self) -> None:
        while self._imported:
            self._imported.pop().close()

    @contextlib.contextmanager
    def _offered(self, memory: Memory, note: str) -> Iterator[str]:
        broker = self._session.broker
        name, fd = broker.next_name(), memory.export()
        try:
            broker.offer(name, fd, memory.size_bytes, note)
        finally:
            os.close(fd)
        yield name
        broker.withdraw(name)

    def _reach_all(self, name: str, gpu: str) -> None:
        for rank in range(self._session.world_size):
            if rank == self._session.rank:
                self.addresses.append(self.own.address)
                self.sharers += 1
                continue
            found = self._session.broker.find(rank, name, MEET_S)
            try:
                memory = self._maker.reach(found.fd, found.size_bytes)
            except SessionError as error:
                text = f"the GPU memory of rank {rank} cannot be reached: {error}"
                raise SessionError(text) from error
            finally:
                os.close(found.fd)
            self._imported.append(memory)
            self.addresses.append(memory.address)
            self.sharers += found.note == gpu

    def _said(self, name: str) -> Iterator[str]:
        """By rank, why it could not; where a rank is out of this one's sight, that."""
        for rank in range(self._session.world_size):
            try:
                found = self._session.broker.find(rank, name, MEET_S)
            except SessionError as error:
                yield str(error)
            else:
                os.close(found.fd)
                yield found.note

    def _report(self, failed: str) -> None:
        others = self._session.world_size - 1
        if failed:
            self._session.broker.report("none", failed)
        else:
            text = f"a buffer has the memory of {others} other rank(s)"
            self._session.broker.report("posix_fd", text)
