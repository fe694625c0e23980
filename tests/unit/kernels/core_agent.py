"""One node's sessions over the real core, without groups and peers of an agent; for library tests.

Serves as many ranks as the world has, all on this node. What is served here is only the session's
messages: rings, regions, barriers and failures are the core's own.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from types import TracebackType

from epfabric import messages
from epfabric_agent import _native

GROUP = 1
RINGS, DEPTH, SIGNALS = 4, 64, 8
BOUND_S = 30.0


class CoreAgent:
    """A listening socket at path; each connection is one rank."""

    def __init__(self, folder: Path, world_size: int) -> None:
        self.path = str(folder / "agent.sock")
        self.world_size = world_size
        self.core = _native.Core(address="127.0.0.1", provider="", idle="adaptive")
        self.sessions: dict[int, _native.Session] = {}
        self.counts: dict[int, _native.SessionCount] = {}
        self._connections: dict[int, socket.socket] = {}
        self._joined = threading.Barrier(world_size, action=self._open_epoch)
        self._left: set[int] = set()
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(world_size)
        self._threads = [
            threading.Thread(target=self._accept, name=f"session-{n}") for n in range(world_size)
        ]

    def _open_epoch(self) -> None:
        ranks = sorted(self.sessions)
        local = [self.sessions[rank] for rank in ranks]
        self.core.open_epoch(GROUP, 1, local, [], 0, [ranks], int(BOUND_S * 1000))
        self.core.start_epoch(GROUP)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        rank = -1
        with connection:
            while True:
                try:
                    packet, fds, _, _ = socket.recv_fds(connection, messages.MAX_PACKET_BYTES, 1)
                except ConnectionResetError:  # a rank that died with packets unread
                    packet, fds = b"", []
                if not packet:
                    break
                request = messages.decode_request(packet)
                if isinstance(request, messages.Hello):
                    rank = request.rank
                    self._greet(connection, rank)
                else:
                    connection.send(messages.encode(self._answer(rank, request, fds)))
        if rank >= 0 and rank not in self._left:
            self._fail(f"rank {rank} was lost")
        if rank >= 0:
            self.counts[rank] = self.sessions[rank].counters()

    def _greet(self, connection: socket.socket, rank: int) -> None:
        with self._lock:
            session = self.core.open_session(
                group=GROUP, rank=rank, world=self.world_size, rings=RINGS, depth=DEPTH,
                signals=SIGNALS, cpus=[-1],
            )  # fmt: skip
            self.sessions[rank] = session
            self._connections[rank] = connection
        fds = session.share()
        hello = messages.HelloReply(
            abi=1, node="here", agent_pid=os.getpid(), group="ns/g", fabric="moe", rings=RINGS,
            depth=DEPTH, batch=8, signals=SIGNALS, world_size=self.world_size, rank=rank,
            max_inflight=256, barrier_timeout_ms=int(BOUND_S * 1000),
            join_timeout_ms=int(BOUND_S * 1000), pod_bytes=os.fstat(fds[0]).st_size,
            agent_bytes=os.fstat(fds[1]).st_size,
        )  # fmt: skip
        socket.send_fds(connection, [messages.encode(hello)], list(fds))
        for fd in fds:
            os.close(fd)

    def _answer(self, rank: int, request: messages.Request, fds: list[int]) -> messages.Reply:
        session = self.sessions[rank]
        match request:
            case messages.Register():
                info = session.register_memfd(fds[0], request.bytes)
                os.close(fds[0])
                return messages.RegisterReply(
                    region=info.region, offset=info.offset, bytes=info.bytes
                )
            case messages.Join():
                self._joined.wait(BOUND_S)
                sizes = tuple(self.sessions[r].region_bytes for r in range(self.world_size))
                return messages.JoinReply(epoch=1, regions=sizes)
            case _:
                session.drain(int(BOUND_S * 1000))
                self._left.add(rank)
                self.core.rank_left(GROUP, rank)
                return messages.LeaveReply()

    def _fail(self, reason: str) -> None:
        with self._lock:
            self.core.fail_epoch(GROUP, reason)
            for connection in self._connections.values():
                try:
                    connection.send(messages.encode(messages.Failed(epoch=1, reason=reason)))
                except OSError:
                    continue

    def __enter__(self) -> CoreAgent:
        for thread in self._threads:
            thread.start()
        return self

    def wait_for_ends(self) -> None:
        """Until every session has ended, within a bound."""
        for thread in self._threads:
            thread.join(BOUND_S)
            assert not thread.is_alive(), f"{thread.name} is still open"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections.values():
            if connection.fileno() >= 0:
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(BOUND_S)
        self.core.close()
