"""A rank that keeps to no library: its own packets, slots and memfd; for the abuse of agents."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np
from epfabric_agent import _native
from native.pod import Pod, make_memfd

WAIT_S = 60.0


def open_socket(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(WAIT_S)
    sock.connect(str(path))
    return sock


def hello(rank: int = 0, world: int = 1, **fields: object) -> dict[str, object]:
    return {
        "type": "hello",
        "abi": 1,
        "rank": rank,
        "world_size": world,
        "gpu": None,
        "pid": os.getpid(),
    } | fields


def register(size: int) -> dict[str, object]:
    return {"type": "register", "kind": "memfd", "bytes": size}


def said(sock: socket.socket) -> dict[str, Any]:
    """The next packet; empty at end of file."""
    packet = sock.recv(1 << 16)
    answer: dict[str, Any] = json.loads(packet) if packet else {}
    return answer


def ask(sock: socket.socket, message: dict[str, object], *fds: int) -> dict[str, Any]:
    socket.send_fds(sock, [json.dumps(message).encode()], fds)
    return said(sock)


def refused(answer: dict[str, Any]) -> tuple[str, str]:
    """Code and text of a refusal."""
    assert answer.get("ok") is False, answer
    return answer["error"]["code"], answer["error"]["message"]


@dataclass
class Fds:
    """What native.pod.Pod wants of a session: its two memfds, to be closed by who asks."""

    rank: int
    fds: tuple[int, int]

    def share(self) -> tuple[int, int]:
        return self.fds


@dataclass
class Seat:
    """One session. `pod` pushes commands once join() has been answered."""

    path: Path
    rank: int
    world: int
    size: int = 1 << 16
    sock: socket.socket = field(init=False)
    pod: Pod = field(init=False)
    memory: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.sock = open_socket(self.path)
        request = json.dumps(hello(self.rank, self.world)).encode()
        self.sock.send(request)
        packet, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 2)
        answer = json.loads(packet)
        assert answer["ok"], answer
        shape = (answer["rings"], answer["depth"], answer["signals"], self.world)
        session = cast(_native.Session, Fds(self.rank, (fds[0], fds[1])))
        self.pod = Pod(session, *shape)
        fd = make_memfd(self.size)
        self.memory = np.memmap(f"/proc/self/fd/{fd}", np.uint8, "r+")
        answer = ask(self.sock, register(self.size), fd)
        os.close(fd)
        assert answer["ok"], answer

    def join(self) -> None:
        """Asks; joined() waits for the answer, so that one thread may join many."""
        self.sock.send(b'{"type":"join"}')

    def joined(self) -> None:
        answer = said(self.sock)
        assert answer.get("ok"), answer

    def __enter__(self) -> Seat:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.sock.close()
