"""The thread that listens to the agent: answers, failures, its heartbeat; started by Session."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import Callable

from epfabric import messages, wire
from epfabric.failure import Failure

_LOOK_S = 0.1
STILL_LIMIT_S = 1.0
_FAIR_GAP_S = 0.25
Answer = tuple[messages.Reply, tuple[int, ...]]
"""With its descriptors, which are whoever's that takes it."""


class Stillness:
    """Decides whether a heartbeat stands still; time in which nobody looked does not count."""

    def __init__(self) -> None:
        self._value: int | None = None
        self._last_look = 0.0
        self._still_s = 0.0

    def look(self, value: int, now: float) -> bool:
        """True when the value was the same for a second, seen often enough to be sure."""
        if value != self._value:
            self._value, self._still_s = value, 0.0
        else:
            self._still_s += min(now - self._last_look, _FAIR_GAP_S)
        self._last_look = now
        return self._still_s >= STILL_LIMIT_S


class Watch:
    """Owns reading from the socket. Answers go to a queue; None there means: none will come."""

    def __init__(
        self,
        sock: socket.socket,
        node: str,
        failure: Failure,
        heartbeat: Callable[[], int],
        set_abort: Callable[[], None],
    ) -> None:
        self._sock = sock
        self._node = node
        self._failure = failure
        self._heartbeat = heartbeat
        self._set_abort = set_abort
        self._answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="epfabric-watch", daemon=True)
        self._thread.start()

    def answer(self, timeout_s: float) -> Answer | None:
        """The next answer; None when the session ended; queue.Empty after timeout_s."""
        return self._answers.get(timeout=timeout_s)

    def stop(self) -> None:
        """Ends the thread; a second call does nothing."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=10 * _LOOK_S)
        with contextlib.suppress(queue.Empty):
            while True:  # nobody will take them
                if (answer := self._answers.get_nowait()) is not None:
                    wire.close_all(answer[1])
        self._answers.put(None)

    def _run(self) -> None:
        still = Stillness()
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while not self._stop.is_set():
            if poll.poll(_LOOK_S * 1000) and not self._read():
                return
            if still.look(self._heartbeat(), time.monotonic()):
                self._fail(
                    f"the agent of node {self._node} gave no sign of life for "
                    f"{STILL_LIMIT_S:g} s: look at its pod on that node"
                )
                return

    def _read(self) -> bool:
        try:
            reply, fds = wire.take(self._sock)
        except messages.MessageError as error:
            self._fail(f"the agent of node {self._node} sent an unknown message: {error}")
            return False
        if reply is None:
            if not self._stop.is_set():
                self._fail(
                    f"the agent of node {self._node} closed the session (it ended or was "
                    "restarted): look at its pod on that node, then start the group anew"
                )
            return False
        if isinstance(reply, messages.Failed):
            self._fail(reply.reason)
            return True
        self._answers.put((reply, fds))
        return not isinstance(reply, messages.LeaveReply)

    def _fail(self, reason: str) -> None:
        self._failure.set(reason)
        self._set_abort()
        self._answers.put(None)
