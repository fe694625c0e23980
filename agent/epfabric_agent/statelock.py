"""One agent per node: a lock on a file of the node's folder, held while the process lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class Locked(OSError):
    """Another agent has the folder."""


def lock(state_dir: Path) -> int:
    """The descriptor that holds the lock; the kernel lets go when the process ends.

    Raises Locked, or OSError where the folder cannot be written.
    """
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
