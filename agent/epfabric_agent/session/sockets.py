"""The sockets of pods: one in each pod's directory, as records (or a manifest) say; for the agent.

A socket is reached through its directory's descriptor, as the path may be longer than a socket
address holds, and so that a directory that was replaced is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from epfabric_agent.groups.local_rank import Refusal
from epfabric_agent.pods import Pod
from epfabric_agent.session.conversation import Conversation
from epfabric_agent.session.packets import Closed, Connection
from epfabric_agent.session.pod_thread import PodThread
from epfabric_agent.session.rate import Rate
from epfabric_agent.session.services import Current

NAME = "agent.sock"
BACKLOG = 64
MAX_CONNECTIONS = 128
MAX_TURNED_AWAY = 16  # at once, beyond those; then connections wait in the backlog
CONNECTIONS_PER_S = 50.0
CONNECTION_BURST = 256
POD_REQUESTS_PER_S = 200.0
POD_REQUEST_BURST = 2000
PAUSE_S = 1.0
LOOK_S = 0.1
_log = logging.getLogger(__name__)


class PodSocket:
    """Listens for one pod. `current` is asked at each connection."""

    def __init__(self, pod: Pod, current: Current) -> None:
        """Binds. Raises OSError."""
        self.pod = pod
        self._current = current
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = PodThread()
        self._connections = Rate(CONNECTIONS_PER_S, CONNECTION_BURST)
        self._requests = Rate(POD_REQUESTS_PER_S, POD_REQUEST_BURST)
        self._sock, self._bound = _bind(pod.directory)
        self._listen()

    @property
    def stale(self) -> bool:
        """The directory, or the socket in it, is not the one that was bound."""
        try:
            there = (self.pod.directory / NAME).lstat()
        except OSError:
            return True
        return not os.path.samestat(there, os.fstat(self._bound))

    def stop_listening(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._close_soon(self._sock)
            os.close(self._bound)

    async def close(self) -> None:
        """Ends all conversations; the socket file stays, for the next agent to replace."""
        self.stop_listening()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)

    def _listen(self) -> None:
        if self._sock.fileno() < 0:
            return
        if len(self._tasks) < MAX_CONNECTIONS + MAX_TURNED_AWAY:
            self._loop.add_reader(self._sock.fileno(), self._accept)
        else:
            self._loop.call_later(LOOK_S, self._listen)

    def _rest(self, seconds: float) -> None:
        """What waits in the backlog would call _accept() again at once."""
        self._loop.remove_reader(self._sock.fileno())
        self._loop.call_later(seconds, self._listen)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            _log.error("cannot accept for %s: %s", self.pod.label, error)
            self._rest(PAUSE_S)
            return
        wait_s = self._connections.take(self._loop.time())
        task = self._loop.create_task(self._converse(sock))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        if wait_s or len(self._tasks) >= MAX_CONNECTIONS + MAX_TURNED_AWAY:
            self._rest(max(wait_s, LOOK_S))

    async def _converse(self, sock: socket.socket) -> None:
        connection = Connection(sock, self._thread)
        if not self._current.serving:
            _log.warning("%s was turned away: the agent serves no sessions yet", self.pod.label)
        elif len(self._tasks) > MAX_CONNECTIONS:
            text = f"a pod has at most {MAX_CONNECTIONS} connections at once: close some"
            with contextlib.suppress(Closed):
                connection.send(Refusal("quota", text).reply())
        else:
            await Conversation(connection, self.pod, self._current, self._requests).run()
            return
        await connection.close()

    def _close_soon(self, sock: socket.socket) -> None:
        fd = sock.detach()
        self._thread.soon(lambda: os.close(fd))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a conversation with %s ended badly", self.pod.label, exc_info=error)


class Sockets:
    """All pods' sockets of this node."""

    def __init__(self, current: Current) -> None:
        self._current = current
        self._sockets: dict[str, PodSocket] = {}

    async def follow(self, pods: Iterable[Pod]) -> None:
        """Binds for new pods, and again where a directory was made anew; drops pods that went."""
        wanted = {pod.key: pod for pod in pods}
        gone = [
            k for k, known in self._sockets.items() if wanted.get(k) != known.pod or known.stale
        ]
        await asyncio.gather(*(self._sockets.pop(key).close() for key in gone))
        for key, pod in wanted.items():
            if key in self._sockets:
                continue
            try:
                self._sockets[key] = PodSocket(pod, self._current)
            except OSError as error:
                _log.warning("no socket for %s in %s: %s", pod.label, pod.directory, error)

    async def close(self) -> None:
        sockets, self._sockets = list(self._sockets.values()), {}
        for bound in sockets:
            bound.stop_listening()
        await asyncio.gather(*(bound.close() for bound in sockets))


def _bind(directory: Path) -> tuple[socket.socket, int]:
    """Also a descriptor of the socket's file: while it is open, no other file gets its inode."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        path = f"/proc/self/fd/{fd}/{NAME}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        sock.bind(path)
        os.chmod(path, 0o666)
        sock.setblocking(False)
        sock.listen(BACKLOG)
        return sock, os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        sock.close()
        raise
    finally:
        os.close(fd)
