"""A network namespace of its own with links of its own; for tests that change NICs for real."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000


class Namespace:
    def __init__(self, name: str) -> None:
        self.name = name
        self.path = Path("/run/netns") / name

    @property
    def enter(self) -> list[str]:
        """What to put before a command; `ip netns exec` would hide /sys."""
        return ["nsenter", f"--net={self.path}"]

    def ip(self, *args: str) -> str:
        done = subprocess.run(["ip", "-n", self.name, *args], capture_output=True, text=True)
        assert done.returncode == 0, f"ip {' '.join(args)}: {done.stderr}"
        return done.stdout

    def veth(self, name: str, *options: str, peer: str = "") -> None:
        """A pair that is up, with `options` for the first end."""
        other = peer or f"{name}p"
        self.ip("link", "add", name, *options, "type", "veth", "peer", "name", other)
        self.ip("link", "set", name, "up")
        self.ip("link", "set", other, "up")

    def mtu(self, name: str) -> int:
        words = self.ip("-o", "link", "show", name).split()
        return int(words[words.index("mtu") + 1])

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs `work()` on a loop of its own in a thread that is inside; so are its executors."""
        result: list[T] = []
        fault: list[BaseException] = []

        def body() -> None:
            try:
                self._go_in()
                result.append(asyncio.run(work()))
            except BaseException as error:
                fault.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if fault:
            raise fault[0]
        return result[0]

    def _go_in(self) -> None:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(fd, CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        finally:
            os.close(fd)


@contextmanager
def namespace(prefix: str) -> Iterator[Namespace]:
    """Gone with all of its links at the end. Needs root."""
    made = Namespace(f"{prefix}-{uuid.uuid4().hex[:8]}")
    subprocess.run(["ip", "netns", "add", made.name], check=True)
    try:
        made.ip("link", "set", "lo", "up")
        yield made
    finally:
        subprocess.run(["ip", "netns", "del", made.name], check=True)
