"""A rank that a test drives: attaches, exchanges until its group ends, and again; for agent.crew.

Started with the path of the test's socket and a name. Each command is one session; what happens is
told as it happens, with the time on the machine's clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

import epfabric
import moe_plan
import moe_rank
import numpy as np

BLOCK = 4096
Command = dict[str, Any]


class Blocks:
    """Every rank writes a block of its own to every rank in each round, checked between barriers.

    The first byte of rank 0's blocks says whether the round is the last one.
    """

    def __init__(self, session: epfabric.Session, command: Command) -> None:
        self.session, self.me, self.world = session, session.rank, session.world_size
        self.seed = command["seed"]
        self.region = session.register(2 * self.world * BLOCK)

    def block(self, source: int, to: int, number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        rng = np.random.default_rng([self.seed, source, to, number])
        return rng.integers(0, 256, BLOCK, np.uint8)

    def round(self, number: int, last: bool) -> bool:
        base, bytes_ = self.region.offset, self.region.array
        for to in range(self.world):
            mine = bytes_[to * BLOCK : (to + 1) * BLOCK]
            mine[:] = self.block(self.me, to, number)
            mine[0] = last
            place = base + (self.world + self.me) * BLOCK
            self.session.ring(to % self.session.rings).write(to, base + to * BLOCK, place, BLOCK)
        self.session.barrier()
        for source in range(self.world):
            got = bytes_[(self.world + source) * BLOCK : (self.world + source + 1) * BLOCK]
            if not np.array_equal(got[1:], self.block(source, self.me, number)[1:]):
                raise moe_rank.WrongBytes(f"round {number}: rank {source} wrote other bytes")
        ends = bool(bytes_[self.world * BLOCK])
        self.session.barrier()
        return ends


class Tokens:
    """examples/moe_rank.py, whose ranks wait for each other's signals; it ends by its group."""

    def __init__(self, session: epfabric.Session, command: Command) -> None:
        shape = moe_plan.Shape(
            world_size=session.world_size, tokens=16, hidden=256, seed=command["seed"]
        )
        self.rank = moe_rank.Rank(session, shape)

    def round(self, number: int, last: bool) -> bool:
        self.rank.exchange(number)
        return number + 1 == 20_000


class Holding:
    """In the group without a command, as a rank that computes, but for a look at its group."""

    def __init__(self, session: epfabric.Session, command: Command) -> None:
        self.session = session
        session.register(BLOCK)

    def round(self, number: int, last: bool) -> bool:
        with contextlib.suppress(epfabric.Timeout):
            self.session.wait_signal(self.session.rank, 0, 0, at_least=1, timeout_s=0.1)
        return last


class Work(Protocol):
    def __init__(self, session: epfabric.Session, command: Command) -> None: ...

    def round(self, number: int, last: bool) -> bool:
        """True after the last one. `last`: the test wants it to be so."""


WORK: dict[str, type[Work]] = {"blocks": Blocks, "tokens": Tokens, "holding": Holding}


class Driven:
    def __init__(self, path: str, name: str) -> None:
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.connect(path)
        self.link.send(name.encode())

    def tell(self, event: str, **more: Any) -> None:
        self.link.send(json.dumps({"event": event, "at": time.monotonic(), **more}).encode())

    def serve(self) -> None:
        while packet := self.link.recv(65536):
            command = json.loads(packet)
            if "finish" in command:
                continue  # the session that it was for has ended
            rounds = 0
            try:
                for number in self.session(command):
                    rounds = number
                self.tell("done", rounds=rounds)
            except epfabric.SessionError as error:
                self.tell("failed", rounds=rounds, code=error.code, reason=str(error))
            except moe_rank.WrongBytes as error:
                self.tell("wrong", rounds=rounds, reason=str(error))

    def session(self, command: Command) -> Iterator[int]:
        """Yields after each round."""
        with epfabric.connect(command["path"], command["rank"], command["world"]) as session:
            work = WORK[command["work"]](session, command)
            session.join()
            self.tell("joined", epoch=session.epoch)
            number, last, ended = 0, False, False
            while not ended:
                last = last or bool(select.select([self.link], [], [], 0)[0])
                ended = work.round(number, last)
                number += 1
                yield number
            if last:
                self.link.recv(65536)


if __name__ == "__main__":
    os.environ.pop("RANK", None)
    Driven(*sys.argv[1:3]).serve()
