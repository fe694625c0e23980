"""One agent per node: a lock on a file of the node's folder, held while the process lives."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from pathlib import Path

LOOK_S = 0.2
_log = logging.getLogger(__name__)


class Locked(OSError):
    """Another agent has the folder."""


def lock(state_dir: Path, patience_s: float = 0.0) -> int:
    """The descriptor that holds the lock; the kernel lets go when the process ends.

    `patience_s` is how long the one before may take to end: when a node goes to another fabric,
    the agents of both are there for a while. Raises Locked, or OSError where the folder cannot be
    written.
    """
    end = time.monotonic() + patience_s
    told = False
    while True:
        try:
            return _try(state_dir)
        except Locked as error:
            if time.monotonic() >= end:
                raise
            if not told:
                _log.info("waiting: %s", error)
                told = True
        time.sleep(LOOK_S)


def _try(state_dir: Path) -> int:
    try:
        state_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(state_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OSError(
            f"{error.filename}: {error.strerror}; --state-dir must be a folder that can be written"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "?"
        os.close(fd)
        raise Locked(
            f"another agent (process {holder}) runs with {state_dir}: one agent per node; "
            "end it, or give --state-dir"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
