"""Checks of much data by all processors; for tests and benches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

MUCH_BYTES = 64 << 20


def at_once(calls: Iterable[Callable[[], None]], size_bytes: int) -> None:
    """Of much by as many threads as there are processors; of less by one, since they would only
    hold each other up. Raises what the first call that fails does."""
    threads = len(os.sched_getaffinity(0)) if size_bytes >= MUCH_BYTES else 1
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()
