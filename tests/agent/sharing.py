"""Memory that ranks share by way of their agent, without a GPU; for tests of the agents.

A memfd stands in for a descriptor of GPU memory. The agent treats both alike: it keeps descriptors
and passes them on.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import epfabric
from agent.two_agents import WAIT_S, TwoAgents

PAGE = 4096
SIZE = 1 << 20


class Memfd:
    """What epfabric.trial asks of memory, over a memfd."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._fd = os.dup(fd)
        self._map = mmap.mmap(self._fd, size_bytes)
        self.address = id(self)

    @classmethod
    def made(cls, size_bytes: int = SIZE) -> Memfd:
        fd = os.memfd_create("stand-in")
        os.ftruncate(fd, size_bytes)
        try:
            return cls(fd, size_bytes)
        finally:
            os.close(fd)

    @property
    def inode(self) -> tuple[int, int]:
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def export(self) -> int:
        return os.dup(self._fd)

    def read(self, index: int) -> int:
        return int.from_bytes(self._map[4 * index : 4 * index + 4], "little")

    def write(self, index: int, value: int) -> None:
        self._map[4 * index : 4 * index + 4] = value.to_bytes(4, "little")

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._fd)


class Maker:
    """What epfabric.trial asks of a GPU, with memfds; `fault`: what reach() does before."""

    def __init__(self, fault: Callable[[], None] = lambda: None, device: str = "one") -> None:
        self._fault, self._device = fault, device

    def name(self) -> str:
        return self._device

    def make(self, size_bytes: int) -> Memfd:
        return Memfd.made(-(-size_bytes // PAGE) * PAGE)

    def reach(self, fd: int, size_bytes: int) -> Memfd:
        self._fault()
        return Memfd(fd, size_bytes)

    def fabric(self) -> str:
        return "they are memfds"


def fails() -> None:
    raise epfabric.SessionError("CUDA: some reason")


def offer(session: epfabric.Session, name: str, memory: Memfd, note: str = "") -> None:
    fd = memory.export()
    try:
        session.broker.offer(name, fd, memory.size_bytes, note)
    finally:
        os.close(fd)


def find(session: epfabric.Session, rank: int, name: str, timeout_s: float = 0.0) -> Memfd:
    found = session.broker.find(rank, name, timeout_s)
    try:
        return Memfd(found.fd, found.size_bytes)
    finally:
        os.close(found.fd)


def each(sessions: list[epfabric.Session], call: str) -> None:
    """Calls that method on all at once; raises what one raised."""
    with ThreadPoolExecutor(len(sessions)) as pool:
        for done in [pool.submit(getattr(session, call)) for session in sessions]:
            done.result(WAIT_S)


def connect(pair: TwoAgents, nodes: str, group: str = "moe") -> list[epfabric.Session]:
    """A session for each letter of `nodes`, which says the node of that rank; not joined."""
    return [
        epfabric.connect(str(pair.socket(node, group)), rank, len(nodes), timeout_s=WAIT_S)
        for rank, node in enumerate(nodes)
    ]


@contextmanager
def joined(pair: TwoAgents, nodes: str, group: str = "moe") -> Iterator[list[epfabric.Session]]:
    """As connect(), in an epoch; what is left of them at the end is aborted."""
    with ExitStack() as stack:
        sessions = connect(pair, nodes, group)
        for session in sessions:
            stack.callback(session.abort)
        each(sessions, "join")
        yield sessions


def files(pid: int, kind: str = "memfd:stand-in") -> int:
    """How many descriptors of the stand-in the process holds."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += kind in os.readlink(entry)
    return count
