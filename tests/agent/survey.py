"""What processes hold and use, by /proc: descriptors, threads, memory files, CPU time."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
LOOK_S = 0.02


@dataclass(frozen=True)
class Held:
    """`files`: descriptors by kind, such as socket or memfd:epfabric-pod; `mapped`: memory files
    of sessions, as name and inode."""

    files: Counter[str]
    mapped: frozenset[tuple[str, str]]
    threads: int
    rss_bytes: int


def held(pid: int) -> Held:
    """OSError when the process is gone."""
    files: Counter[str] = Counter()
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            name = os.readlink(f"/proc/{pid}/fd/{entry}")
        except FileNotFoundError:
            continue
        files[re.sub(r":?\[\d+\]$", "", name)] += 1
    mapped = set()
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/memfd:epfabric"):
            mapped.add((fields[5], fields[4]))
    status = Path(f"/proc/{pid}/status").read_text()
    return Held(files, frozenset(mapped), _field(status, "Threads"), _field(status, "VmRSS") << 10)


def _field(status: str, name: str) -> int:
    return int(status.split(f"{name}:")[1].split()[0])


def cpu_s(pid: int) -> float:
    """User and system time of the whole process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def shares(pids: Iterable[int], over_s: float) -> dict[int, float]:
    """Of one core that each process used over that time."""
    before, begin = {pid: cpu_s(pid) for pid in pids}, time.monotonic()
    time.sleep(over_s)
    passed = time.monotonic() - begin
    return {pid: (cpu_s(pid) - used) / passed for pid, used in before.items()}


class Lateness:
    """How late this machine wakes a process that sleeps: bounds in seconds are stretched by it."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lateness")

    def __enter__(self) -> Lateness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stop.is_set():
            time.sleep(LOOK_S)
            now = time.monotonic()
            self.total_s += max(0.0, now - before - LOOK_S)
            before = now
