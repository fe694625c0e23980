"""Ranks of a buffer that are those of a session: its agent hands them each other's memory.

For members. Pods need share no IPC namespace for it: what goes around are file descriptors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack

from epfabric.broker import Found
from epfabric.errors import GroupFailed, SessionError
from epfabric.limits import PAGE_BYTES
from epfabric.messages import BAD_REQUEST
from epfabric.session import Session
from epfabric.trial import FAULTS, Cuda, Maker, Memory, said

MEET_S = 300.0  # until every rank has begun to make its buffer
NOTE = 480  # characters that go with a descriptor


class Attached:
    """`session` has joined. agents: ranks may be such that only the agents reach."""

    def __init__(self, session: Session, *, agents: bool = False) -> None:
        if session.epoch is None:
            raise SessionError("a Buffer's session has to have joined its group before")
        self._session, self._agents = session, agents

    @property
    def rank(self) -> int:
        return self._session.rank

    @property
    def size(self) -> int:
        return self._session.world_size

    def window(self, size_bytes: int) -> Brokered:
        neighbours = self._session.broker.neighbours if self._agents else None
        return Brokered(self._session, size_bytes, Cuda(), neighbours)


def failures(said: Iterable[str]) -> str:
    """What went wrong at which rank, by what each says; empty where nothing did."""
    return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(said) if text)


class Brokered:
    """A window by descriptors. Afterwards the agent holds none of it.

    neighbours: the ranks of the node, where others are reached through the agents; so are these
    then, all of them, where one does not reach another's memory. Otherwise all ranks are of the
    node, and that is an error. A rank that cannot offer memory ends the group where there are
    neighbours; otherwise it is an error of all.
    """

    own: Memory

    def __init__(
        self, session: Session, size_bytes: int, maker: Maker,
        neighbours: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self.addresses: list[int] = []
        self.sharers = 0
        self._session, self._maker = session, maker
        self._agents = neighbours is not None
        self._ranks = range(session.world_size) if neighbours is None else neighbours
        self._imported: list[Memory] = []
        self._offers_own = False
        # Both are counted whatever comes, so that ranks that make another buffer mean the same.
        name, verdicts = session.broker.next_name(), session.broker.next_name()
        why = ""
        with ExitStack() as undo, ExitStack() as offers:
            undo.callback(self.close)
            try:
                self._begin(size_bytes, name, undo, offers)
            except FAULTS as error:
                why = said(error)
                if self._agents and not self._offers_own:
                    session.abort()  # ranks of other nodes hear of it in no other way
                    raise SessionError(why) from error
            self._tell(name, verdicts, why, offers)
            failed = failures(self._said(verdicts))
            session.barrier()  # nobody withdraws before everybody has all
            offers.close()
            self._report(failed)
            if failed:
                if not self._agents:
                    raise SessionError(failed)
                self._do_without()
            undo.pop_all()

    def close(self) -> None:
        while self._imported:
            self._imported.pop().close()

    def _do_without(self) -> None:
        """Reaches no memory but this rank's own."""
        self.close()
        rank = self._session.rank
        self.addresses = [
            self.own.address if other == rank else 0 for other in range(self._session.world_size)
        ]

    def _begin(self, size_bytes: int, name: str, undo: ExitStack, offers: ExitStack) -> None:
        """Makes this rank's memory, and reaches the others'."""
        self.own = memory = self._maker.make(size_bytes)
        undo.callback(memory.close)
        gpu = self._maker.name()
        offers.enter_context(self._offered(name, memory.export(), memory.size_bytes, gpu))
        self._offers_own = True
        self._reach_all(name, gpu, size_bytes)

    def _tell(self, name: str, verdicts: str, why: str, offers: ExitStack) -> None:
        """Says what went wrong, which nobody else would learn; a page stands for the memory."""
        try:
            if not self._offers_own:
                offers.enter_context(self._offered(name, _page(), PAGE_BYTES, ""))
            offers.enter_context(self._offered(verdicts, _page(), PAGE_BYTES, why[:NOTE]))
        except GroupFailed:
            raise
        except SessionError as error:
            if error.code != BAD_REQUEST:  # else no rank of this agent can, and all see it
                self._session.abort()  # the others wait for what this one cannot say
            raise SessionError(why or said(error), error.code) from error

    @contextlib.contextmanager
    def _offered(self, name: str, fd: int, size_bytes: int, note: str) -> Iterator[None]:
        """`fd` is closed."""
        broker = self._session.broker
        try:
            broker.offer(name, fd, size_bytes, note)
        finally:
            os.close(fd)
        try:
            yield
        finally:
            with contextlib.suppress(SessionError):
                broker.withdraw(name)

    def _reach_all(self, name: str, gpu: str, size_bytes: int) -> None:
        own = self._session.rank
        self.sharers = 1
        found: dict[int, Found] = {}
        with ExitStack() as descriptors:
            for rank in self._ranks:  # of all before one fails: who shares a GPU counts
                if rank != own:
                    found[rank] = one = self._session.broker.find(rank, name, MEET_S)
                    descriptors.callback(os.close, one.fd)
                    self.sharers += one.note == gpu
            for rank in range(self._session.world_size):
                if rank in found:
                    self.addresses.append(self._reach(rank, found[rank], size_bytes))
                else:
                    self.addresses.append(self.own.address if rank == own else 0)

    def _reach(self, rank: int, found: Found, size_bytes: int) -> int:
        """Its address."""
        try:
            if found.size_bytes < size_bytes:
                # Whoever wrote to it as to its own would write beyond it.
                raise SessionError(f"{found.size_bytes} bytes are there, not {size_bytes}")
            memory = self._maker.reach(found.fd, found.size_bytes)
        except FAULTS as error:
            text = f"the GPU memory of rank {rank} cannot be reached: {said(error)}"
            raise SessionError(text) from error
        self._imported.append(memory)
        return memory.address

    def _said(self, name: str) -> Iterator[str]:
        """By rank, why it could not; where a rank is out of this one's sight, that."""
        for rank in range(self._session.world_size):
            if rank not in self._ranks:
                yield ""
                continue
            try:
                found = self._session.broker.find(rank, name, MEET_S)
            except SessionError as error:
                yield str(error)
            else:
                os.close(found.fd)
                yield found.note

    def _report(self, failed: str) -> None:
        others = len(self._ranks) - 1
        if failed:
            self._session.broker.report("none", failed)
        elif others:  # else join() has said all
            broker = self._session.broker
            text = f"a buffer has the memory of {others} other rank(s)"
            broker.report("posix_fd", f"{text}; {broker.fabric}" if broker.fabric else text)


def _page() -> int:
    """A descriptor that stands for nothing, for a note to go with."""
    return os.memfd_create("epfabric-note", os.MFD_CLOEXEC)
