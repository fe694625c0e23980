"""One pod's own thread, for calls that the pod can make last; used by session.packets, .sockets.

Whoever lets go of a file last waits for what that takes: a TCP socket with SO_LINGER, a file of a
file system that does not answer. A pod chooses what it sends, so none of its files is received,
closed or dropped on the agent's loop. It holds up its own requests at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")
_Call = Callable[[], None]


class PodThread:
    """Calls run one after the other. The thread is there while there is something to do, and a
    daemon: the agent's end does not wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[_Call] = deque()
        self._runs = False

    def soon(self, call: _Call) -> None:
        """Has `call` run, whatever becomes of the caller. It must not raise."""
        with self._lock:
            self._calls.append(call)
            if self._runs:
                return
            self._runs = True
        try:
            threading.Thread(target=self._run, name="epf-pod", daemon=True).start()
        except RuntimeError:  # no more threads: rather a loop that waits than files that stay
            self._run()

    async def run(self, call: Callable[[], T]) -> T:
        """Its result or exception. Where the caller is cancelled, `call` still runs to its end."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = call()
            except Exception as error:
                tell(partial(done.set_exception, error))
            else:
                tell(partial(done.set_result, result))

        def tell(settle: _Call) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(lambda: None if done.done() else settle())

        self.soon(work)
        try:
            return await done
        except Exception:
            del done  # by its error, whose traceback has this frame, it would hold `call`
            raise

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._runs = False
                    return
                call = self._calls.popleft()
            call()
