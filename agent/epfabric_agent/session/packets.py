"""Packets and their file descriptors over one pod's connection; used by session.conversation.

Descriptors that arrive are closed with their packet, whatever becomes of it: a pod cannot make the
agent keep files open.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

from epfabric import messages

MAX_FDS = 4
_ANCILLARY = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)


@dataclass(frozen=True)
class Packet:
    """One message as it came. A context: its descriptors are closed at the end."""

    data: bytes
    fds: tuple[int, ...]
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
        for fd in self.fds:
            with contextlib.suppress(OSError):
                os.close(fd)


class Closed(Exception):
    """The pod's end of the connection is gone."""


class Connection:
    """One accepted connection, without blocking; one reader and any number of senders."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = asyncio.get_running_loop()

    @property
    def process(self) -> int:
        """The process that connected, as the kernel says; 0 for another pid namespace."""
        size = struct.calcsize("3i")
        found = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", found)[0])

    async def receive(self) -> Packet:
        """The next packet. Raises Closed at end of file."""
        while True:
            try:
                return self._take()
            except BlockingIOError:
                await self._readable()

    def send(self, message: messages.Request | messages.Reply, fds: Iterable[int] = ()) -> None:
        """Sends at once. Raises Closed also when the pod does not read: its queue is full."""
        try:
            socket.send_fds(self._sock, [messages.encode(message)], list(fds))
        except OSError as error:
            raise Closed(f"cannot send to the pod: {error}") from error

    def tell(self, message: messages.Failed) -> None:
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
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def _take(self) -> Packet:
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(
                messages.MAX_PACKET_BYTES + 1, _ANCILLARY, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            raise
        except OSError as error:
            raise Closed(str(error)) from error
        fds = _descriptors(ancillary)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(data) > messages.MAX_PACKET_BYTES:
            text = f"a packet holds at most {messages.MAX_PACKET_BYTES} bytes and {MAX_FDS} files"
            return Packet(b"", fds, text)
        if not data:
            Packet(b"", fds).__exit__(None, None, None)
            raise Closed("end of file")
        return Packet(data, fds)

    async def _readable(self) -> None:
        ready = self._loop.create_future()
        fd = self._sock.fileno()
        if fd < 0:
            raise Closed("closed by the agent")
        self._loop.add_reader(fd, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            if self._sock.fileno() == fd:
                self._loop.remove_reader(fd)


def _descriptors(ancillary: Iterable[tuple[int, int, bytes]]) -> tuple[int, ...]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            whole = len(data) - len(data) % found.itemsize
            found.frombytes(data[:whole])
    return tuple(found)
