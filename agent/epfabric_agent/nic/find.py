"""NICs of the node: the kernel's links with what sysfs says of them; for nic.knobs."""

from __future__ import annotations

import os

from epfabric_agent.nic.facts import Network, Nic, is_pci
from epfabric_agent.topology.machine import Machine, link_name, text
from epfabric_agent.topology.nics import rdma_devices


def find(machine: Machine, network: Network) -> tuple[Nic, ...]:
    """Every link but loopback, and RDMA devices without a link; by name."""
    rdma = rdma_devices(machine)
    found = []
    for link in network.links.values():
        if link.name == "lo":
            continue
        folder = machine.sys / "class/net" / link.name
        device = folder / "device"
        rdma_device = rdma.pop(link.name, "")
        found.append(
            Nic(
                name=link.name,
                index=link.index,
                driver=link_name(device / "driver"),
                pci_address=_pci(device),
                rdma_device=rdma_device,
                physical_function=_pci(device / "physfn"),
                port=text(folder / "phys_port_name"),
                hardware=device.exists() or bool(rdma_device),
                addresses=link.addresses,
            )
        )
    for name, rdma_device in rdma.items():  # InfiniBand, EFA
        device = machine.sys / "class/infiniband" / rdma_device / "device"
        found.append(
            Nic(
                name=name,
                driver=link_name(device / "driver"),
                pci_address=_pci(device),
                rdma_device=rdma_device,
                hardware=True,
            )
        )
    return tuple(sorted(found, key=lambda nic: nic.name))


def _pci(device: os.PathLike[str]) -> str:
    name = os.path.basename(os.path.realpath(device)) if os.path.exists(device) else ""
    return name if is_pci(name) else ""
