"""Packets and file descriptors over a session's socket; called by session.py only."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from epfabric import messages
from epfabric.errors import GroupFailed, SessionError, Timeout

_RETRY_S = 0.1
CORDONED_S = 1.0
# BlockingIOError: the agent has not accepted the connections that came before.
_NOT_YET = (FileNotFoundError, ConnectionRefusedError, BlockingIOError, TimeoutError)
_NO_GPU = ("gpu", "unsupported")  # not the pod's; an agent that takes none
SHORT_S = 20.0  # of which an agent may use much to ask whose a GPU is
_IO_TIMEOUT_S = 10.0  # packets are small and go one at a time: only a stopped agent takes long
R = TypeVar("R", bound=messages.Reply)
log = logging.getLogger(__name__)


def open_socket(path: str, deadline: float) -> socket.socket:
    """Connects to the agent; tries again while its socket is not there, until the deadline."""
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.settimeout(max(deadline - time.monotonic(), _RETRY_S))
            sock.connect(path)
            return sock
        except _NOT_YET as error:
            sock.close()
            if time.monotonic() + _RETRY_S > deadline:
                raise Timeout(
                    f"no agent answers at {path} ({error}): is the pod annotated with "
                    "epfabric.io/fabric, and does the agent of this node run?"
                ) from error
            time.sleep(_RETRY_S)
        except OSError as error:
            sock.close()
            raise SessionError(f"cannot connect to the agent at {path}: {error}") from error


def send(sock: socket.socket, request: messages.Request, fds: tuple[int, ...]) -> None:
    """Sends one packet with its descriptors."""
    try:
        socket.send_fds(sock, [messages.encode(request)], list(fds))
    except OSError as error:
        raise SessionError(f"the agent closed the session: {error}") from error


def say_hello(
    sock: socket.socket, hello: messages.Hello, deadline: float
) -> tuple[messages.HelloReply, tuple[int, int]]:
    """Sends hello and returns the answer with the descriptors of the pod's and agent's segments."""
    send(sock, hello, ())
    sock.settimeout(max(deadline - time.monotonic(), _RETRY_S))
    try:
        packet, fds = _receive(sock, 2)
    except TimeoutError:
        raise Timeout("the agent did not answer hello in time") from None
    except OSError as error:
        raise SessionError(f"the agent closed the session: {error}") from error
    sock.settimeout(_IO_TIMEOUT_S)
    try:
        if not packet:
            raise SessionError("the agent closed the session instead of answering hello")
        reply = expect(messages.decode_reply(packet), messages.HelloReply)
        if len(fds) != 2:
            raise SessionError(f"the agent's hello carried {len(fds)} descriptors instead of 2")
    except messages.OtherVersion as error:
        close_all(fds)
        raise SessionError(str(error), code="abi") from error
    except messages.MessageError as error:
        close_all(fds)
        raise SessionError(f"the agent's answer to hello is not understood: {error}") from error
    except SessionError:
        close_all(fds)
        raise
    return reply, (fds[0], fds[1])


def _receive(sock: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """The next packet, with at most so many descriptors; nothing at the end. Raises OSError."""

    def receive() -> tuple[bytes, list[int]]:
        return socket.recv_fds(sock, messages.MAX_PACKET_BYTES + 1, most, socket.MSG_CMSG_CLOEXEC)[
            :2
        ]

    try:
        return receive()
    except ConnectionResetError:  # once, where the other end left something unread
        return receive()  # what it had said before


def attach(
    path: str, hello: messages.Hello, deadline: float, *, gpu_asked: bool = True
) -> tuple[socket.socket, messages.HelloReply, tuple[int, int]]:
    """Connects and says hello; while the node admits no new group, again, until the deadline.

    A GPU that nobody asked for is left out where the agent does not take it, or in half of a short
    time says nothing.
    """
    while True:
        sock = open_socket(path, deadline)
        spare = hello.gpu is not None and not gpu_asked
        left_s = deadline - time.monotonic()
        until = deadline - left_s / 2 if spare and left_s < SHORT_S else deadline
        try:
            return sock, *say_hello(sock, hello, until)
        except SessionError as error:
            sock.close()
            late = isinstance(error, Timeout) and until < deadline
            if spare and (late or error.code in _NO_GPU):
                # Not a warning of Python's, which may be set to raise: the session opens.
                log.warning("connecting without a GPU: %s", error)
                hello = replace(hello, gpu=None)
                continue
            if error.code != "cordoned" or time.monotonic() + CORDONED_S > deadline:
                raise
            time.sleep(CORDONED_S)
        except BaseException:
            sock.close()
            raise


def take(sock: socket.socket) -> tuple[messages.Reply | None, tuple[int, ...]]:
    """The next packet and its descriptors, which are the caller's; None at the end of the session.

    Raises MessageError.
    """
    try:
        packet, fds = _receive(sock, 1)
    except OSError:
        return None, ()
    try:
        reply = messages.decode_reply(packet) if packet else None
    except messages.MessageError:
        close_all(fds)
        raise
    return reply, tuple(fds)


def expect(reply: messages.Reply, expected: type[R]) -> R:
    """The reply if it is the expected one; a refusal becomes its exception."""
    if isinstance(reply, messages.ErrorReply):
        if reply.code == "group-failed":
            raise GroupFailed(reply.message, code=reply.code)
        if reply.code == "join-timeout":
            raise Timeout(reply.message, code=reply.code)
        raise SessionError(reply.message, code=reply.code)
    if isinstance(reply, messages.Failed):
        raise GroupFailed(reply.reason)
    if not isinstance(reply, expected):
        raise SessionError(f"the agent answered {reply.TYPE} to another request")
    return reply


def close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def ends_join(reply: messages.Reply) -> bool:
    """Whether it answers a join, though another request is out. That one is answered apart: where
    it was refused for the same reason, the two answers are alike."""
    if isinstance(reply, messages.ErrorReply):
        return reply.code in ("join-timeout", "group-failed")
    return isinstance(reply, messages.JoinReply)
