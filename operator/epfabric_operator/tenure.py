"""How long this process may act as the leader; election.py renews it, fence.py asks before a write.

The clock is the process's own, and it goes on while the process is stopped or the machine sleeps:
a leader that comes back late finds its time over before it can act, whatever others believe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


def clock_s() -> float:
    """Seconds that never jump and that count sleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NotLeading(Exception):
    """This process may not write, since another may lead by now."""


@dataclass(frozen=True)
class Terms:
    """Times of the election, all from how long a Lease holds.

    A leader acts until the deadline after it asked for its last renewal; the others wait for the
    whole duration after they saw it. What lies between is for requests that are on their way.
    """

    duration_s: int = 15

    @property
    def deadline_s(self) -> float:
        return self.duration_s * 2 / 3

    @property
    def retry_s(self) -> float:
        return self.duration_s * 2 / 15

    @property
    def request_s(self) -> float:
        """The most that one request about the Lease may take, so that a second one has time."""
        return self.deadline_s / 2


class Tenure:
    def __init__(self, terms: Terms, clock: Callable[[], float] = clock_s) -> None:
        self._terms = terms
        self._clock = clock
        self._asked: float | None = None

    def renew(self, asked: float) -> None:
        """`asked` is the clock before the request that renewed was sent."""
        self._asked = asked

    def end(self) -> None:
        self._asked = None

    def left_s(self) -> float:
        """Seconds in which writes may still be sent; 0 when it is over."""
        asked = self._asked
        return 0.0 if asked is None else max(0.0, asked + self._terms.deadline_s - self._clock())

    def write_s(self) -> float:
        """Seconds after which a write that is sent now must have ended. Raises NotLeading."""
        left = self.left_s()
        if left <= 0:
            raise NotLeading("the Lease was not renewed in time: another may lead by now")
        return left + self._terms.duration_s - self._terms.deadline_s
