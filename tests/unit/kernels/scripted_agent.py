"""An agent that does what a real one does only when it is broken: dies, stands still, babbles.

Used by test_session_failures.py; what a healthy agent does is tested with the real one.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from epfabric import layout, messages
from epfabric.limits import ABI_VERSION
from epfabric.messages import Reply, Request

HEARTBEAT_S = 0.02
Script = Callable[[Request], Reply | bytes | None]


class Segment:
    """One memfd of a session, as its owner sees it."""

    def __init__(self, size_bytes: int, magic: int) -> None:
        self.fd = os.memfd_create("segment", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size_bytes)
        self.memory = mmap.mmap(self.fd, size_bytes)
        self.put(0, magic)
        self.put(8, ABI_VERSION)

    def put(self, offset: int, value: int) -> None:
        self.memory[offset : offset + 8] = value.to_bytes(8, "little")

    def get(self, offset: int) -> int:
        return int.from_bytes(self.memory[offset : offset + 8], "little")


class ScriptedAgent:
    """Serves one session at a socket; after a refusal it waits for another try.

    script answers requests; where it returns None, hello gets its regular answer and anything else
    gets none. b"": no answer, and another try is waited for.
    """

    def __init__(self, folder: Path, script: Script | None = None) -> None:
        self.path = str(folder / "agent.sock")
        self.hello = messages.HelloReply(
            abi=1, node="n7", agent_pid=os.getpid(), group="ns/g", fabric="moe", rings=2, depth=16,
            batch=8, signals=4, world_size=2, rank=0, max_inflight=256, barrier_timeout_ms=1000,
            join_timeout_ms=1000, pod_bytes=1, agent_bytes=1,
        )  # fmt: skip
        at = layout.layout_of(2, 16, 4, 2)
        self.layout = at
        self.pod = Segment(at.pod_bytes, layout.POD_MAGIC)
        self.agent = Segment(at.agent_bytes, layout.AGENT_MAGIC)
        self.requests: list[Request] = []
        self.received_fds: list[int] = []
        self.connection: socket.socket | None = None
        self.refused = False
        self.ended = threading.Event()
        self.script = script or self.answer
        self._stop = threading.Event()
        self._beat = threading.Event()
        self._beat.set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = [threading.Thread(target=t) for t in (self._serve, self._heartbeat)]

    def answer(self, request: Request) -> Reply | None:
        """What a healthy agent would say."""
        match request:
            case messages.Register():
                return messages.RegisterReply(region=0, offset=65536, bytes=request.bytes)
            case messages.Join():
                return messages.JoinReply(epoch=1, regions=(65536, 65536))
            case messages.Leave():
                return messages.LeaveReply()
        return None

    def stand_still(self) -> None:
        """Stops the heartbeat, as a stopped or hung agent would."""
        self._beat.clear()

    def send(self, message: Reply | bytes) -> None:
        """Sends a packet of its own accord."""
        assert self.connection is not None
        packet = message if isinstance(message, bytes) else messages.encode(message)
        self.connection.send(packet)

    def vanish(self) -> None:
        """Closes the connection, as the kernel does for a killed agent."""
        assert self.connection is not None
        self.connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> ScriptedAgent:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        if self.connection is not None:
            self.connection.close()
        for thread in self._threads:
            thread.join(timeout=10)
        self._listener.close()
        for fd in (self.pod.fd, self.agent.fd, *self.received_fds):
            os.close(fd)

    def _heartbeat(self) -> None:
        while not self._stop.is_set():
            if self._beat.is_set():
                self.agent.put(layout.AGENT_HEARTBEAT, time.monotonic_ns())
            self._stop.wait(HEARTBEAT_S)

    def _serve(self) -> None:
        try:
            self.connection, _ = self._listener.accept()
            while True:
                packet, fds, _, _ = socket.recv_fds(self.connection, 1 << 17, 4)
                if not packet and self.refused:
                    self.refused = False
                    self.connection.close()
                    self.connection, _ = self._listener.accept()
                    continue
                if not packet:
                    break
                self.received_fds += fds
                request = messages.decode_request(packet)
                self.requests.append(request)
                reply = self.script(request)
                self.refused = reply == b"" or isinstance(reply, messages.ErrorReply)
                if reply:
                    self.send(reply)
                elif reply is None and isinstance(request, messages.Hello):
                    self._greet()
        except OSError:
            pass
        self.ended.set()

    def _greet(self) -> None:
        """Answers hello with the two segments."""
        assert self.connection is not None
        packet = messages.encode(self.hello)
        socket.send_fds(self.connection, [packet], [self.pod.fd, self.agent.fd])
