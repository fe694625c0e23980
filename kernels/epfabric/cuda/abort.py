"""A word that ends the waits of a buffer's kernels, and why it was set; for the buffers' ends."""

from __future__ import annotations

import threading

from epfabric.cuda.rank import HostWords


class Abort:
    """In host memory: kernels look at it now and then. A CUDA context must be current."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._lock = threading.RLock()  # the collector may close it meanwhile
        self._word = HostWords(1)
        self.address = self._word.address

    def set(self, reason: str) -> None:
        """From any thread; the first reason stays. After close() no kernel sees it."""
        with self._lock:
            if self.reason is None:
                self.reason = reason
                self._word.words[0] = 1

    def close(self) -> None:
        """After the last kernel that looks at it (idempotent)."""
        with self._lock:
            self._word.close()
