"""What is waiting to be looked at: names of fabrics and of certificate requests; used by the loop.

A name that is added many times before its turn is worked on once. Failed work comes back later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Work:
    kind: str  # "fabric", "csr", "authority" or "all"
    name: str = ""


EVERYTHING = Work("all")
AUTHORITY = Work("authority")


class Worklist:
    def __init__(self, settle_s: float = 0.3, clock: Callable[[], float] = time.monotonic) -> None:
        self._settle_s = settle_s
        self._clock = clock
        self._due: dict[Work, float] = {}
        self._failures: dict[Work, int] = {}
        self._changed = threading.Condition()

    def add(self, work: Work, after_s: float | None = None) -> None:
        """`after_s` is how long to wait for more of the same; by default a moment."""
        due = self._clock() + (self._settle_s if after_s is None else after_s)
        with self._changed:
            self._due[work] = min(due, self._due.get(work, due))
            self._changed.notify()

    def failed(self, work: Work) -> None:
        """Come back to it: after 1, 2, 4 … 60 s."""
        count = self._failures[work] = self._failures.get(work, 0) + 1
        self.add(work, after_s=min(60.0, 2.0 ** (count - 1)))

    def done(self, work: Work) -> None:
        self._failures.pop(work, None)

    def waiting(self) -> int:
        with self._changed:
            return len(self._due)

    def take(self, timeout_s: float) -> list[Work]:
        """All that is due, in order; waits for the first one, at most `timeout_s`."""
        end = self._clock() + timeout_s
        with self._changed:
            while True:
                now = self._clock()
                due = sorted(work for work, when in self._due.items() if when <= now)
                if due or now >= end:
                    for work in due:
                        del self._due[work]
                    return due
                self._changed.wait(min([end, *self._due.values()]) - now)
