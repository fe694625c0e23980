"""Which NICs the proxies of a session use: those near its rank's GPU, those with fewer proxies
first. Used by session.opening.

Only where all NICs of the fabric reach each other: else both ends of a link have to be at the same
place in their lists, and every session uses all NICs as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from epfabric_crds.node import Gpu

from epfabric_agent.topology.discover import Inventory
from epfabric_agent.topology.machine import Machine
from epfabric_agent.topology.near import Place, order_nics, place_of
from epfabric_agent.topology.transport import Port


@dataclass(frozen=True)
class Turn:
    """Of one session: the core's ports in its own order, of which the first `used` share its
    proxies; an empty order: all as they are."""

    order: tuple[int, ...]
    used: int
    give_back: Callable[[], None]


class NicTurns:
    def __init__(self, machine: Machine, found: Callable[[], Inventory]) -> None:
        self._machine = machine
        self._found = found
        self._loads: dict[Port, int] = {}

    def take(self, ports: tuple[Port, ...], gpu: Gpu | None, proxies: int, lines: int) -> Turn:
        """`ports`: the core's, none where there is no choice; `lines`: those of a proxy."""
        machine, found = self._machine, self._found()
        nics = {nic.rdma_device: nic for nic in found.topology.nics if nic.rdma_device}
        active = {(port.device, port.number): port.active for port in found.rdma_ports}
        down = [not active.get((device, number), True) for device, number, _ in ports]
        places = [
            place_of(machine, nic.pci_address, nic.numa_node) if nic else Place()
            for nic in (nics.get(device) for device, _, _ in ports)
        ]
        near = place_of(machine, gpu.pci_address, gpu.numa_node) if gpu else Place()
        loads = [self._loads.get(port, 0) for port in ports]
        each = max(lines, 1)
        order, used = order_nics(places, near, loads, down, most=proxies * each, least=each)
        taken = [ports[order[i % used]] for i in range(proxies * each)] if ports else []
        for port in taken:
            self._loads[port] = self._loads.get(port, 0) + 1

        def give_back() -> None:
            for port in taken:
                self._loads[port] -= 1
            taken.clear()

        return Turn(order, used, give_back)
