"""How old the agents' Leases are, by this process's clock; used by reconcile.py.

Nodes' clocks differ. A Lease whose renewTime changed since it was last looked at is fresh, whatever
time it names; only at first sight is renewTime compared with the local time.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

PREFIX = "epfabric-agent-"


class LeaseAges:
    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._seen: dict[str, tuple[str, float, float]] = {}  # node → renewTime, age then, when

    def update(self, leases: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Node → seconds since its agent's Lease was renewed, for every agent's Lease given."""
        now = self._monotonic()
        seen: dict[str, tuple[str, float, float]] = {}
        for lease in leases:
            name = lease["metadata"]["name"]
            renewed = (lease.get("spec") or {}).get("renewTime")
            if not name.startswith(PREFIX) or not renewed:
                continue
            node = name.removeprefix(PREFIX)
            before = self._seen.get(node)
            if before is None:
                seen[node] = (renewed, max(0.0, self._wall() - _seconds(renewed)), now)
            elif before[0] != renewed:
                seen[node] = (renewed, 0.0, now)
            else:
                seen[node] = before
        self._seen = seen
        return {node: age + now - when for node, (_, age, when) in seen.items()}


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
