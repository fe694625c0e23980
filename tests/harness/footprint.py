"""What an operator's process costs, from /proc, its log and the audit log; for scale tests."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from harness.audit import Audit
from harness.process import Process

LOOK = re.compile(rb"looked at \d+ fabrics, (\d+) nodes in ([0-9.]+) s")
TICKS = os.sysconf("SC_CLK_TCK")
AGENT = "epfabric-operator"  # as its User-Agent begins


class Footprint:
    """Of a process that was started with --log-level=debug."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._proc = Path(f"/proc/{process.pid}")
        self._read = 0
        self._rest = b""
        self._looks: list[tuple[int, float]] = []

    def peak_mib(self) -> float:
        """Most memory so far (VmHWM), or since forget_peak()."""
        found = re.search(r"VmHWM:\s+(\d+) kB", (self._proc / "status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    def forget_peak(self) -> None:
        (self._proc / "clear_refs").write_text("5")

    def cpu_s(self) -> float:
        fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def looks(self) -> list[tuple[int, float]]:
        """Nodes and seconds of each look at the cluster so far; resyncs are among them."""
        with self.process.log.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        self._read += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            if found := LOOK.search(line):
                self._looks.append((int(found[1]), float(found[2])))
        return self._looks


def writes(audit: Audit, since: int) -> Counter[str]:
    """What operators wrote after this place of the log, by resource; their own Lease is left out.

    What was refused counts as "refused" too.
    """
    found: Counter[str] = Counter()
    for write in audit.writes(since):
        if write.agent.startswith(AGENT) and write.resource != "leases":
            found[write.resource] += 1
            found["refused"] += write.code >= 400
    return found
