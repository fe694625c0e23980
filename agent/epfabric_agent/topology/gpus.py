"""GPUs as the driver's files show them; a machine without any has none. For topology.discover."""

from __future__ import annotations

from epfabric_crds.node import Gpu

from epfabric_agent.topology.machine import Machine, names, number, text

MAX_GPUS = 64


def find_gpus(machine: Machine) -> tuple[Gpu, ...]:
    folder = machine.proc / "driver/nvidia/gpus"
    found = []
    for pci in names(folder):
        uuid = ""
        for line in text(folder / pci / "information").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "GPU UUID":
                uuid = value.strip()
        if not uuid or "?" in uuid:  # a driver that has not started the GPU says question marks
            continue
        numa = number(machine.sys / "bus/pci/devices" / pci / "numa_node", -1)
        found.append(Gpu(uuid=uuid[:64], pci_address=pci, vendor="nvidia", numa_node=max(numa, -1)))
    return tuple(found)[:MAX_GPUS]
