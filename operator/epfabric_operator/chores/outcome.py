"""How a chore ends other than well, and how it waits; used by all chores and their command line."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from epfabric_operator.kube import ApiError

T = TypeVar("T")
log = logging.getLogger(__name__)
SHOWN = 10
PASSING = frozenset({0, 429, 500, 502, 503, 504})


class Refused(Exception):
    """What was asked for would do harm; the text says what and what to do. Nothing was changed."""


class Unfinished(Exception):
    """Something did not come about in time; the text says what is left."""


def wait(left: Callable[[], Sequence[str]], timeout_s: float, what: str) -> None:
    """Look every half second until nothing is left; Unfinished with what is after `timeout_s`."""
    end = time.monotonic() + timeout_s
    told: Sequence[str] = ()
    while now := left():
        if now != told:
            log.info("waiting for %s: %s", what, shown(now))
            told = now
        if time.monotonic() > end:
            raise Unfinished(f"{what}: not done after {timeout_s:.0f} s: {shown(now)}")
        time.sleep(0.5)


def persist(chore: Callable[[float], T], timeout_s: float) -> T:
    """Run it, again from the start while the API server is away or busy, until the time is over.

    Chores do no harm when they do again what they have done. `chore` gets the seconds left. Raises
    what it raises; after the time the last ApiError.
    """
    end = time.monotonic() + timeout_s
    while True:
        try:
            return chore(max(1.0, end - time.monotonic()))
        except ApiError as error:
            if error.status not in PASSING or time.monotonic() > end:
                raise
            log.warning("trying again: %s", error)
            time.sleep(1)


def shown(names: Sequence[str]) -> str:
    """At most ten of them."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
