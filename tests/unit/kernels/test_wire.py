"""Reaching the agent's socket when it is there but busy."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from epfabric import errors, messages, wire


def full_listener(path: Path) -> tuple[socket.socket, list[socket.socket]]:
    """A listening socket whose queue holds no further connection, and those that fill it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(0)
    waiting: list[socket.socket] = []
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            sock.connect(str(path))
        except BlockingIOError:
            sock.close()
            return listener, waiting
        waiting.append(sock)


def test_ranks_that_start_all_at_once_wait_for_their_turn(tmp_path: Path) -> None:
    listener, waiting = full_listener(tmp_path / "agent.sock")
    got: list[socket.socket | errors.SessionError] = []

    def connect() -> None:
        try:
            got.append(wire.open_socket(str(tmp_path / "agent.sock"), time.monotonic() + 60))
        except errors.SessionError as error:
            got.append(error)

    rank = threading.Thread(target=connect)
    rank.start()
    rank.join(0.3)
    assert rank.is_alive(), got  # nobody can get in before accept()
    listener.settimeout(60)
    accepted = [listener.accept()[0] for _ in range(len(waiting) + 1)]
    rank.join(60)
    assert len(got) == 1
    assert isinstance(got[0], socket.socket), got[0]
    for sock in (listener, got[0], *waiting, *accepted):
        sock.close()


def test_an_agent_that_accepts_nobody_is_a_timeout_that_says_where(tmp_path: Path) -> None:
    listener, waiting = full_listener(tmp_path / "agent.sock")
    with pytest.raises(errors.Timeout, match=f"no agent answers at {tmp_path}/agent.sock"):
        wire.open_socket(str(tmp_path / "agent.sock"), time.monotonic() + 0.3)
    for sock in (listener, *waiting):
        sock.close()


def pair() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.settimeout(60)
    return ends


def test_the_reason_is_heard_from_an_agent_that_ends_before_it_reads_a_request() -> None:
    pod, agent = pair()
    with pod:
        failed = messages.Failed(epoch=1, reason="rank 3 was lost")
        agent.send(messages.encode(failed))
        pod.send(messages.encode(messages.Leave()))
        agent.close()
        assert wire.take(pod) == (failed, ())
        assert wire.take(pod) == (None, ())


def test_the_refusal_is_heard_from_an_agent_that_does_not_read_the_hello() -> None:
    pod, agent = pair()
    refusal = messages.ErrorReply(code="quota", message="too many connections")

    def refuse() -> None:
        agent.recv(1, socket.MSG_PEEK)
        agent.send(messages.encode(refusal))
        agent.close()

    other = threading.Thread(target=refuse)
    other.start()
    hello = messages.Hello(abi=1, oldest=1, rank=0, world_size=1, gpu=None, pid=0)
    with pod, pytest.raises(errors.SessionError, match="too many connections") as refused:
        wire.say_hello(pod, hello, time.monotonic() + 60)
    other.join(60)
    assert refused.value.code == "quota"
