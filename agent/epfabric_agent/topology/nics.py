"""Network interfaces and RDMA devices from sysfs; for topology.discover."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from epfabric_crds.node import Nic

from epfabric_agent.topology.machine import Machine, link_name, names, number, text

MAX_NICS = 128
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def find_nics(machine: Machine) -> tuple[Nic, ...]:
    """Interfaces with hardware, an RDMA device or an address; by name, rails numbered."""
    rdma = rdma_devices(machine)
    known = machine.addresses()
    found = []
    for name in names(machine.sys / "class/net"):
        folder = machine.sys / "class/net" / name
        device = rdma.pop(name, None)
        hardware = (folder / "device").exists()
        if name != "lo" and (hardware or device or known.get(name)):
            found.append(_nic(name, folder, device, known.get(name, ())))
    for name, device in rdma.items():  # InfiniBand without an interface
        found.append(_nic(name, machine.sys / "class/infiniband" / device, device, ()))
    return _with_rails(found)[:MAX_NICS]


def rdma_devices(machine: Machine) -> dict[str, str]:
    """RDMA device by its interface, or by its own name where it has none."""
    folder = machine.sys / "class/infiniband"
    found = {}
    for device in names(folder):
        interfaces = names(folder / device / "device/net") or [
            text(folder / device / "ports/1/gid_attrs/ndevs/0")
        ]
        for interface in interfaces:
            found[interface or device] = device
    return found


def _nic(name: str, folder: Path, rdma_device: str | None, addresses: tuple[str, ...]) -> Nic:
    device = folder / "device"
    pci = os.path.basename(os.path.realpath(device)) if device.exists() else ""
    speed = number(folder / "speed", -1)
    mtu = number(folder / "mtu", -1)
    return Nic(
        name=name,
        rdma_device=rdma_device,
        driver=link_name(device / "driver") or None,
        pci_address=pci if _PCI.fullmatch(pci) else None,
        numa_node=max(number(device / "numa_node", -1), -1) if device.exists() else None,
        addresses=addresses[:16],
        mtu=mtu if mtu >= 0 else None,
        speed_mbps=speed if speed >= 0 else None,
        state=text(folder / "operstate")[:32] or None,
    )


def _with_rails(nics: list[Nic]) -> tuple[Nic, ...]:
    """RDMA NICs in the order of their PCI addresses are the rails."""
    order = sorted((n for n in nics if n.rdma_device), key=lambda n: (n.pci_address or "", n.name))
    rails = {nic.name: rail for rail, nic in enumerate(order)}
    numbered = (replace(n, rail=rails[n.name]) if n.name in rails else n for n in nics)
    return tuple(sorted(numbered, key=lambda nic: nic.name))
