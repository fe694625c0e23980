"""Stops one thread of another process, as a core that never answers would; for test_loss."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]


def thread_named(pid: int, name: str) -> int:
    for task in os.listdir(f"/proc/{pid}/task"):
        if Path(f"/proc/{pid}/task/{task}/comm").read_text().strip() == name:
            return int(task)
    raise AssertionError(f"process {pid} has no thread {name}")


class Frozen:
    def __init__(self, thread: int) -> None:
        self._thread = thread

    def reap(self) -> None:
        """A traced thread that has ended keeps its process until its tracer has looked."""
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._thread, os.WNOHANG | WALL)


@contextmanager
def frozen(thread: int) -> Iterator[Frozen]:
    """OSError where tracing is not allowed. Goes on, if it is still there, at the end."""
    for request in (SEIZE, INTERRUPT):
        if _libc.ptrace(request, thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace of thread {thread}")
    os.waitpid(thread, WALL)
    try:
        yield Frozen(thread)
    finally:
        _libc.ptrace(DETACH, thread, None, None)
