"""Reaching the agent's socket when it is there but busy."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from epfabric import errors, wire


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
