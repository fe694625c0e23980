"""Memory that ranks of one node hand each other by way of their agent; a Session's `broker`."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from epfabric import messages, wire
from epfabric.errors import SessionError

ANSWER_S = 30.0
R = TypeVar("R", bound=messages.Reply)


class Exchange(Protocol):
    def __call__(
        self,
        request: messages.Request,
        expected: type[R],
        timeout_s: float,
        fds: tuple[int, ...] = (),
    ) -> tuple[R, tuple[int, ...]]: ...


@dataclass(frozen=True)
class Found:
    """What a rank offers. The descriptor is the caller's, to be closed."""

    fd: int
    size_bytes: int
    note: str


class Broker:
    """Every call is one exchange with the agent, and raises SessionError where that refuses."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._names = itertools.count()
        self.nvlink: tuple[messages.NvlinkKind, str] = ("none", "join() tries it")
        self.fabric = ""  # whether its GPU makes handles for other nodes, as the trial found
        self.neighbours: tuple[int, ...] = ()  # ranks of the node that offered GPU memory at join

    def end(self) -> None:
        """With its session, which it refers to no longer: else that would stay until it is looked
        for by the garbage collector."""
        self._exchange = _closed

    def next_name(self) -> str:
        """For what all ranks offer together: the same on each, as they make the same in order."""
        return f"shared-{next(self._names)}"

    def offer(self, name: str, fd: int, size_bytes: int, note: str = "") -> None:
        """Lets the group's other ranks of this node have a duplicate of `fd`. The agent keeps one
        until withdraw() or the session's end, and with it the memory that it stands for."""
        request = messages.Offer(kind="posix_fd", bytes=size_bytes, name=name, note=note)
        try:
            self._exchange(request, messages.RegisterReply, ANSWER_S, (fd,))
        except SessionError as error:
            if error.code != messages.BAD_REQUEST:
                raise
            text = (
                "the agent is older than this library and brokers no memory: update the fabric "
                f"(it says: {error})"
            )
            raise SessionError(text, error.code) from error

    def withdraw(self, name: str) -> None:
        self._exchange(messages.Unregister(name=name), messages.UnregisterReply, ANSWER_S)

    def find(self, rank: int, name: str, timeout_s: float = 0.0) -> Found:
        """What the rank offers by that name; waits for it. Once the group is open."""
        wait_ms = min(int(timeout_s * 1000), messages.MAX_WAIT_MS)
        request = messages.PeerMemory(rank=rank, name=name, wait_ms=wait_ms)
        limit_s = wait_ms / 1000 + ANSWER_S
        reply, fds = self._exchange(request, messages.PeerMemoryReply, limit_s)
        if len(fds) != 1:
            wire.close_all(fds)
            raise SessionError(f"the memory of rank {rank} came with {len(fds)} descriptors")
        return Found(fds[0], reply.bytes, reply.note)

    def report(self, nvlink: messages.NvlinkKind, reason: str) -> None:
        """Tells the agent how this rank reaches the others' GPU memory, for its status."""
        self.nvlink = (nvlink, reason)
        request = messages.Tried(nvlink=nvlink, reason=reason[: messages.MAX_NOTE])
        self._exchange(request, messages.TriedReply, ANSWER_S)


def _closed(*_: Any, **__: Any) -> Any:
    raise SessionError("this session is closed")
