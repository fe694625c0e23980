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

from epfabric_agent.pods import Pod
from epfabric_agent.session.conversation import Conversation
from epfabric_agent.session.packets import Connection
from epfabric_agent.session.services import Current

NAME = "agent.sock"
BACKLOG = 64
MAX_CONNECTIONS = 128
PAUSE_S = 1.0
_log = logging.getLogger(__name__)


class PodSocket:
    """Listens for one pod. `current` is asked at each connection."""

    def __init__(self, pod: Pod, current: Current) -> None:
        """Binds. Raises OSError."""
        self.pod = pod
        self._current = current
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
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
            self._sock.close()
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
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            # The connection that waits would call this again at once, for as long as that lasts.
            _log.error("cannot accept for %s: %s", self.pod.label, error)
            self._loop.remove_reader(self._sock.fileno())
            self._loop.call_later(PAUSE_S, self._listen)
            return
        if len(self._tasks) >= MAX_CONNECTIONS:
            sock.close()
            return
        if not self._current.serving:
            _log.warning("%s was turned away: the agent serves no sessions yet", self.pod.label)
            sock.close()
            return
        conversation = Conversation(Connection(sock), self.pod, self._current)
        task = self._loop.create_task(conversation.run())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

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
