"""Which of a node's NICs are near a GPU; for session.nic_turns.

Near is first what shares most of the way to the CPU (a PCIe switch, a root port), then what is on
the same NUMA node. A machine that tells neither has NICs that are all alike.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from epfabric_agent.topology.machine import Machine


@dataclass(frozen=True)
class Place:
    """Of a device: the bridges above it and itself, from the root complex on; its NUMA node."""

    path: tuple[str, ...] = ()
    numa: int | None = None


def place_of(machine: Machine, pci: str | None, numa: int | None) -> Place:
    known = numa if numa is not None and numa >= 0 else None
    if not pci:
        return Place((), known)
    real = os.path.realpath(machine.sys / "bus/pci/devices" / pci)
    parts = real.split("/")
    roots = [i for i, part in enumerate(parts) if part.startswith("pci") and ":" in part]
    return Place(tuple(parts[roots[0] :]) if roots else (), known)


def order_nics(
    nics: Sequence[Place], gpu: Place, loads: Sequence[int], down: Sequence[bool], most: int,
    least: int,
) -> tuple[tuple[int, ...], int]:  # fmt: skip
    """Their numbers, near ones first and of those the least loaded; how many of these are used.

    `loads`: proxies that each serves already; `down`: those that only stand by; `most`: NICs that
    the session's proxies can use; `least`: those that it has to use where there are as many,
    however far.
    """
    if not nics:
        return (), 0

    def away(i: int) -> tuple[bool, int, bool]:
        nic = nics[i]
        pairs = zip(nic.path, gpu.path, strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return down[i], -shared, gpu.numa is None or nic.numa != gpu.numa

    order = sorted(range(len(nics)), key=lambda i: (away(i), loads[i], i))
    near = sum(away(i) == away(order[0]) for i in order)
    return tuple(order), max(min(near, most), min(least, len(nics)))
