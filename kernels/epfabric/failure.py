"""Why a session ended, and the one loop in which callers wait; used by session, ring and watch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from epfabric.errors import GroupFailed, SessionError, Timeout

_SLICE_NS = 200_000_000  # between two chances for Python to run signal handlers
_REASON_GRACE_S = 2.0  # the agent looks for the cause before it tells
_DONE, _ABORTED, _MASKED = 0, 1, 3


class Failure:
    """The first reason for which the session ended; set by the watching thread, kept for ever."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._known = threading.Event()
        self._lock = threading.RLock()  # the collector may close a buffer meanwhile
        self._reason = ""
        self._closed = False
        self._calls: dict[object, Callable[[str], None]] = {}

    def close(self, *, aborted: bool = False) -> None:
        """The session's owner ended it: no failure, but nothing can be waited for any more."""
        with self._lock:
            self._closed = not self._known.is_set()
            self._known.set()
            calls, self._calls = self._calls, {}
        for call in calls.values() if aborted else ():
            call("this session was aborted")

    def set(self, reason: str) -> bool:
        """Keeps the reason if it is the first; tells whether it was."""
        with self._lock:
            if self._known.is_set():
                return False
            self._reason = reason
            self._known.set()
            calls, self._calls = self._calls, {}
        for call in calls.values():
            call(reason)
        return True

    def when_set(self, call: Callable[[str], None]) -> Callable[[], None]:
        """call(reason) once, from any thread, when the session fails or its owner aborts it; at
        once where it has failed. Returns what takes it back."""
        key = object()
        with self._lock:
            over, closed, reason = self._known.is_set(), self._closed, self._reason
            if not over:
                self._calls[key] = call
        if over and not closed:
            call(reason)
        return lambda: self._forget(key)

    def _forget(self, key: object) -> None:
        with self._lock:
            self._calls.pop(key, None)

    @property
    def happened(self) -> bool:
        return self._known.is_set()

    def error(self) -> SessionError:
        """The error for a caller that saw an abort word; the reason may be a moment behind it."""
        self._known.wait(_REASON_GRACE_S)
        if self._closed:
            return SessionError("this session is closed")
        return GroupFailed(self._reason or f"the agent of node {self._node} ended this epoch")


def wait_until(
    attempt: Callable[[int], int], failure: Failure, timeout_s: float, waits_for: str
) -> bool:
    """Calls attempt(timeout_ns) until it reports done; False where it reports a masked rank.

    Raises GroupFailed if an abort word was set or the session has failed, SessionError if it was
    closed, Timeout (which names waits_for) after timeout_s.
    """
    deadline = time.monotonic_ns() + int(timeout_s * 1e9)
    while True:
        over = failure.happened
        left = deadline - time.monotonic_ns()
        status = attempt(0 if over else max(0, min(left, _SLICE_NS)))
        if status in (_DONE, _MASKED):
            return status == _DONE
        if over or status == _ABORTED:
            raise failure.error()
        if left <= _SLICE_NS:
            raise Timeout(f"waited {timeout_s:g} s for {waits_for}")
