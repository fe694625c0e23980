"""Packets and their file descriptors over one pod's connection; used by session.conversation.

Descriptors that arrive are closed with their packet, whatever becomes of it: a pod cannot make the
agent keep files open. All that may let go of one happens on the pod's own thread.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

from epfabric import messages

from epfabric_agent.session.pod_thread import PodThread

MAX_FDS = 4
_ANCILLARY = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
ORPHAN_S = 0.3  # for a child that is about to close what a fork left it
_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it


@dataclass(frozen=True)
class Packet:
    """One message as it came. A context: its descriptors are closed at the end."""

    data: bytes
    fds: tuple[int, ...]
    release: Callable[[tuple[int, ...]], None]
    fault: str = ""
    """Why it cannot be taken: too long, or too many descriptors."""

    def __enter__(self) -> Packet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release(self.fds)


class Closed(Exception):
    """The pod's end of the connection is gone."""


class Orphaned(Closed):
    """The process that connected has ended, but another one holds the socket open."""


class Connection:
    """One accepted connection, without blocking; one reader and any number of senders."""

    def __init__(self, sock: socket.socket, thread: PodThread, orphan_s: float = ORPHAN_S) -> None:
        """`orphan_s`: how long the end of file may come after the end of the process."""
        sock.setblocking(False)
        self.thread = thread
        self._orphan_s = orphan_s
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._held: set[int] = set()  # descriptors that came; only the pod's thread looks
        self._ready: asyncio.Future[None] | None = None
        self._last_look: float | None = None  # once the process has ended; in the loop's time
        self._pidfd = -1
        self._follow_process()

    @property
    def process(self) -> int:
        """The process that connected, as the kernel says; 0 for another pid namespace."""
        size = struct.calcsize("3i")
        found = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", found)[0])

    async def receive(self) -> Packet:
        """The next packet. Raises Closed at end of file, or of the process that connected."""
        while True:
            try:
                if self._carries_fds():
                    return await self.thread.run(self._take)
                return self._take()
            except BlockingIOError:
                if self._last_look is not None and self._last_look <= self._loop.time():
                    raise Orphaned("its process has ended") from None
                await self._readable()

    def send(self, message: messages.Request | messages.Reply, fds: Iterable[int] = ()) -> None:
        """Sends at once. Raises Closed also when the pod does not read: its queue is full."""
        try:
            socket.send_fds(self._sock, [messages.encode(message)], list(fds))
        except OSError as error:
            raise Closed(f"cannot send to the pod: {error}") from error

    async def keep(self, fd: int, check: Callable[[int], None]) -> int:
        """A duplicate of a packet's descriptor, until release() or the connection's end; raises
        what `check` raises for it."""

        def work() -> int:
            check(fd)
            kept = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0)
            self._held.add(kept)
            return kept

        return await self.thread.run(work)

    def release(self, fds: tuple[int, ...]) -> None:
        """Closes descriptors that came, whatever that takes."""
        if fds:
            self.thread.soon(lambda: self._let_go(fds))

    def unread(self) -> bool:
        """Whether something that was sent has not been received."""
        fd = self._sock.fileno()
        found = fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4)) if fd >= 0 else bytes(4)
        return any(found)

    def tell(self, message: messages.Unasked) -> None:
        """Sends news that nobody waits for; a pod that is gone needs none."""
        with contextlib.suppress(Closed):
            self.send(message)

    def end(self) -> None:
        """Ends both directions: receive() raises Closed."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def hung_up(self) -> bool:
        """Whether the pod's end is gone, also where that was not read yet."""
        if self._sock.fileno() < 0:
            return True
        if self._last_look is not None:
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    async def close(self) -> None:
        """Takes as long as the pod makes it; what was sent and not received is dropped here."""
        self._follow_no_more()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            fd = self._sock.detach()
            await self.thread.run(lambda: self._let_go((*self._held, fd)))

    def _carries_fds(self) -> bool:
        """Whether the packet that comes next does."""
        return bool(self._received(1, 0, socket.MSG_PEEK)[2] & socket.MSG_CTRUNC)

    def _take(self) -> Packet:
        data, ancillary, flags, _ = self._received(
            messages.MAX_REQUEST_BYTES + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC
        )
        fds = _descriptors(ancillary)
        self._held.update(fds)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(data) > messages.MAX_REQUEST_BYTES:
            text = f"a request has at most {messages.MAX_REQUEST_BYTES} bytes and {MAX_FDS} files"
            return Packet(b"", fds, self.release, text)
        if not data:
            raise Closed("end of file")
        return Packet(data, fds, self.release)

    def _received(
        self, size: int, ancillary_size: int, flags: int
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, object]:
        try:
            return self._sock.recvmsg(size, ancillary_size, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise Closed(str(error)) from error

    def _let_go(self, fds: Iterable[int]) -> None:
        for fd in fds:
            self._held.discard(fd)
            with contextlib.suppress(OSError):
                os.close(fd)

    async def _readable(self) -> None:
        fd = self._sock.fileno()
        if fd < 0:
            raise Closed("closed by the agent")
        self._ready = self._loop.create_future()
        self._loop.add_reader(fd, self._wake)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._last_look):
                    await self._ready
        finally:
            if self._sock.fileno() == fd:
                self._loop.remove_reader(fd)

    def _wake(self) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _follow_process(self) -> None:
        """A forked child may keep the socket open, so that no end of file would come."""
        try:
            try:
                self._pidfd = self._sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
            except OSError as error:
                if error.errno != errno.ENOPROTOOPT or not self.process:
                    raise
                self._pidfd = os.pidfd_open(self.process)
        except OSError as error:
            if error.errno == errno.ESRCH:
                self._orphan()
            return
        self._loop.add_reader(self._pidfd, self._process_ended)

    def _process_ended(self) -> None:
        self._follow_no_more()
        self._orphan()
        self._wake()

    def _orphan(self) -> None:
        """Its children may be about to close the socket: until then nobody is said to hold it."""
        self._last_look = self._loop.time() + self._orphan_s

    def _follow_no_more(self) -> None:
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> tuple[int, ...]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % found.itemsize
            found.frombytes(data[:whole])
    return tuple(found)
