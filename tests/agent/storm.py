"""Opens and ends sessions of one rank, one after the other, in every way; for test_loss.

Started with a seed, how many, and the sockets to choose from. Uses the protocol as it is, without
the library. Prints how many there were of each kind.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
from collections import Counter
from typing import Any

PAGE = 4096
WAIT_S = 60.0


def connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(WAIT_S)
    sock.connect(path)
    return sock


def ask(sock: socket.socket, fds: tuple[int, ...] = (), **fields: Any) -> dict[str, Any]:
    socket.send_fds(sock, [json.dumps(fields).encode()], list(fds))
    packet, received, _, _ = socket.recv_fds(sock, 65536, 2, socket.MSG_CMSG_CLOEXEC)
    for fd in received:
        os.close(fd)
    answer: dict[str, Any] = json.loads(packet) if packet else {}
    return answer


def hello(sock: socket.socket, rank: int, world: int, abi: int = 1) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "abi": abi,
        "rank": rank,
        "world_size": world,
        "gpu": None,
        "pid": os.getpid(),
    }
    return ask(sock, type="hello", **fields)


def opened(path: str, rng: random.Random, world: int = 1) -> socket.socket:
    """A session with up to two regions."""
    sock = connected(path)
    answer = hello(sock, 0, world)
    assert answer.get("ok"), answer
    for _ in range(rng.randrange(3)):
        fd = os.memfd_create("epfabric-region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.pwrite(fd, bytes(PAGE), 0)
        answer = ask(sock, (fd,), type="register", kind="memfd", bytes=PAGE)
        os.close(fd)
        assert answer.get("ok"), answer
    return sock


def orderly(path: str, rng: random.Random) -> None:
    with opened(path, rng) as sock:
        assert ask(sock, type="join").get("ok")
        assert ask(sock, type="leave").get("ok")


def cut_off(path: str, rng: random.Random) -> None:
    """Closed without a word, at times in the middle of a join that waits for ever."""
    with opened(path, rng, 2) as sock:
        if rng.random() < 0.5:
            sock.send(b'{"type":"join"}')


def killed(path: str, rng: random.Random) -> None:
    """By the kernel, with all that the process had; the group of one runs, at times."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        sock = opened(path, rng)
        if rng.random() < 0.5:
            ask(sock, type="join")
        os.write(told, b"x")
        signal.pause()
    os.close(told)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def refused(path: str, rng: random.Random) -> None:
    with connected(path) as sock:
        kind = rng.randrange(4)
        if kind == 0:
            answer = hello(sock, 7, 2)
        elif kind == 1:
            answer = hello(sock, 0, 1, abi=99)
        elif kind == 2:
            answer = ask(sock, type="join")
        else:
            answer = ask(sock, type="nonsense")
        assert answer["ok"] is False, answer


def twin(path: str, rng: random.Random) -> None:
    with opened(path, rng) as first, connected(path) as second:
        answer = hello(second, 0, 1)
        assert answer["error"]["code"] == "duplicate-rank", answer
        assert ask(first, type="join").get("ok")
        assert ask(first, type="leave").get("ok")


WAYS = (orderly, cut_off, killed, refused, twin)


def main() -> int:
    seed, count, *paths = sys.argv[1:]
    rng = random.Random(int(seed))
    done: Counter[str] = Counter()
    for _ in range(int(count)):
        way = rng.choice(WAYS)
        way(rng.choice(paths), rng)
        done[way.__name__] += 1
    print(json.dumps(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
