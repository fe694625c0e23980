"""What the kernel saw pass between agents over TCP; used by both exchanges of the demo."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from harness.process import HarnessError

SOCKET = re.compile(r"^ESTAB\s+\d+\s+\d+\s+(\S+)\s+(\S+)(?:\s+users:\(\((.*)\)\))?")
SENT = re.compile(r"\bbytes_acked:(\d+)")
PID = re.compile(r"pid=(\d+)")


def tcp_bytes(text: str, node_of: Mapping[int, str]) -> dict[tuple[str, str, str], int]:
    """Bytes that the kernel saw acknowledged, from what `ss -tinpOH` prints.

    node_of: node of each agent's pid. Returns (node, node, connection) → bytes.
    """
    owner: dict[tuple[str, str], str] = {}
    sent: dict[tuple[str, str], int] = {}
    for line in text.splitlines():
        if (found := SOCKET.match(line)) is None:
            continue
        ends = (found[1], found[2])
        for pid in PID.findall(found[3] or ""):
            if int(pid) in node_of:
                owner[ends] = node_of[int(pid)]
        acknowledged = SENT.search(line)
        sent[ends] = int(acknowledged[1]) if acknowledged else 0
    return {
        (owner[ends], owner[ends[::-1]], " ".join(ends)): size
        for ends, size in sent.items()
        if ends in owner and ends[::-1] in owner
    }


def by_pair(connections: Mapping[tuple[str, str, str], int]) -> dict[tuple[str, str], int]:
    pairs: dict[tuple[str, str], int] = {}
    for (source, destination, _), size in connections.items():
        if source != destination:
            pairs[source, destination] = pairs.get((source, destination), 0) + size
    return pairs


class Sampler:
    """Keeps the highest count of every connection between agents while it runs.

    agents: asked at each look, pid → node, since an agent may be restarted.
    networks: what begins a command in each network that agents are in; by default this one.
    """

    def __init__(
        self,
        agents: Callable[[], Mapping[int, str]],
        networks: Sequence[Sequence[str]] = ((),),
        interval_s: float = 0.25,
    ) -> None:
        self.agents = agents
        self.networks = networks
        self.interval_s = interval_s
        self.seen: dict[tuple[str, str, str], int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="tcp sampler")

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join(10)

    def carried(self) -> dict[tuple[str, str], int]:
        """Bytes from node to node over all connections so far."""
        return by_pair(dict(self.seen))

    def look(self) -> None:
        shown = [
            subprocess.run(
                [*enter, "ss", "-tinpOH"], capture_output=True, text=True, check=False, timeout=30
            ).stdout
            for enter in self.networks
        ]
        for connection, size in tcp_bytes("".join(shown), self.agents()).items():
            self.seen[connection] = max(size, self.seen.get(connection, 0))

    def _run(self) -> None:
        while not self._end.wait(self.interval_s):
            try:
                self.look()
            except (HarnessError, subprocess.SubprocessError):
                continue  # Ctrl-C reaches kubectl too, and a later look sees what this one missed
