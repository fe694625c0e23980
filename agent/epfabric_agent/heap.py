"""Keeps the agent's C heap from holding what sessions freed; called by main before any thread runs.

By default every thread gets a heap of its own and keeps what is freed in it: an agent that has
opened a thousand sessions from many threads held 100 MB more than one that has opened a hundred.
The data path allocates nothing, so that one heap is contended by nobody who is in a hurry.
"""

from __future__ import annotations

import ctypes

# mallopt(3), glibc.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_BYTES = 256 << 10


def keep_small() -> None:
    """One heap; large blocks are mapped and go back at once. Nothing where libc has no mallopt."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, _BYTES)
    mallopt(_M_TRIM_THRESHOLD, _BYTES)
