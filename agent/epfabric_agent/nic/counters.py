"""Error and drop counters of NICs, and which of them moved; for what is said of a late barrier.

Looked at when the agent looks at its node anyway, and once more when a barrier ran out of its time.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping

from epfabric_agent.topology.machine import Machine, names, number

MOST_SHOWN = 8
_KEPT = 64
_log = logging.getLogger(__name__)
# Counters that tell of trouble, by their names: of an interface, and of an RDMA port, where every
# driver has names of its own and most of them count traffic.
_FAULT = re.compile(r"err|drop|miss|over|fifo|crc|collision|nohandler|length|frame|abort|carrier")
_PORT_FAULT = re.compile(
    r"err(?!ed)|drop|discard|retr|rnr|timeout|out_of_seq|out_of_buffer|dup|nak|cnp|ecn|link_down|exceeded"
    r"|recover|missed|crc",
    re.IGNORECASE,
)

Counters = Mapping[str, int]
"""By `interface name` or `device/port name`."""


def read_counters(machine: Machine) -> Counters:
    """Of all interfaces but loopback and all RDMA ports; what cannot be read is left out."""
    found: dict[str, int] = {}
    for interface in names(machine.sys / "class/net"):
        folder = machine.sys / "class/net" / interface / "statistics"
        for name in names(folder) if interface != "lo" else []:
            if _FAULT.search(name):
                found[f"{interface} {name}"] = number(folder / name, -1)
    for device in names(machine.sys / "class/infiniband"):
        ports = machine.sys / "class/infiniband" / device / "ports"
        for port in names(ports):
            for kind in ("counters", "hw_counters"):
                for name in names(ports / port / kind):
                    if _PORT_FAULT.search(name):
                        found[f"{device}/{port} {name}"] = number(ports / port / kind / name, -1)
    return {name: value for name, value in found.items() if value >= 0}


def moved(before: Counters, now: Counters) -> dict[str, int]:
    """How much each counter grew, most first; what is new counts from 0, what began anew too."""
    grown = {}
    for name, value in now.items():
        was = before.get(name, 0)
        if value != was:
            grown[name] = value - was if value > was else value
    return dict(sorted(grown.items(), key=lambda entry: (-entry[1], entry[0])))


class NicFaults:
    """The last looks, so that a late barrier can be told from what was there before it began."""

    def __init__(self, machine: Machine, clock: Callable[[], float] = time.monotonic) -> None:
        self._machine = machine
        self._clock = clock
        self._looks: deque[tuple[float, Counters]] = deque(maxlen=_KEPT)
        self._looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        self._looks.append((self._clock(), read_counters(self._machine)))

    async def look_in_time(self, bound_s: float) -> None:
        """A NIC may answer late or never: no second look begins beside the first."""
        if self._looking is not None and not self._looking.done():
            return
        self._looking = asyncio.create_task(asyncio.to_thread(self.look))
        await asyncio.wait({self._looking}, timeout=bound_s)
        if not self._looking.done():
            _log.warning("the NICs' counters could not be read in %g s", bound_s)

    def since(self, seconds: float) -> str:
        """For people: what moved in the last `seconds`, and a little before, and what to do."""
        now = self._clock()
        looks = list(self._looks)
        if not looks:
            return "the NICs' counters were not looked at before"
        older = [look for look in looks if look[0] <= now - seconds]
        at, before = older[-1] if older else looks[0]
        grown = moved(before, read_counters(self._machine))
        span = f"in the last {now - at:.0f} s"
        if not grown:
            return (
                f"no error or drop counter of this node's NICs moved {span}: look whether the "
                "missing ranks' pods run"
            )
        shown = [f"{name} +{by}" for name, by in list(grown.items())[:MOST_SHOWN]]
        more = f" and {len(grown) - MOST_SHOWN} more" if len(grown) > MOST_SHOWN else ""
        return (
            f"counters of this node's NICs that moved {span}: {', '.join(shown)}{more}: look at "
            "the cable, the switch and the NIC's settings (rdma statistic, ethtool -S)"
        )
