"""Rails of the node and how many sessions each serves: pure; for slices and the device plugin.

A slot is a session's place: CPUs for its proxies, near the rail's NIC. A node without RDMA NICs has
one rail without a NIC, for groups over tcp or on one node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epfabric_crds.node import Nic
from epfabric_crds.settings import NicSelector

from epfabric_agent.nic.facts import Nic as Candidate
from epfabric_agent.nic.selector import selects
from epfabric_agent.topology.cpus import Cpus
from epfabric_agent.topology.machine import Machine

MAX_SLOTS = 64
MAX_RAILS = 32
_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")


@dataclass(frozen=True)
class Rail:
    """`pcie_root` such as pci0000:15; empty for what is no PCI device. `numa` -1: not known."""

    name: str
    number: int
    fabric: str
    slots: int
    nic: str = ""
    driver: str = ""
    pci_address: str = ""
    pcie_root: str = ""
    numa: int = -1


def rails_of(
    fabric: str,
    nics: tuple[Nic, ...],
    selector: NicSelector | None,
    cpus: Cpus,
    proxies: int,
    roots: Mapping[str, str],
) -> tuple[Rail, ...]:
    """`proxies` of one session; `roots`: PCIe root by PCI address."""
    chosen = [nic for nic in nics if nic.rail is not None and selects(selector, _candidate(nic))]
    chosen = sorted(chosen, key=lambda nic: nic.rail or 0)[:MAX_RAILS]
    if not chosen:
        return (Rail("rail-0", 0, fabric, _slots(len(cpus.usable), proxies, 1)),)
    by_numa: dict[int, int] = {}
    for nic in chosen:
        numa = _numa(nic)
        by_numa[numa] = by_numa.get(numa, 0) + 1
    found = []
    for nic in chosen:
        numa = _numa(nic)
        near = [cpu for cpu in cpus.usable if numa in (-1, cpus.numa_of.get(cpu, 0))]
        found.append(
            Rail(
                name=f"rail-{nic.rail}",
                number=nic.rail or 0,
                fabric=fabric,
                slots=_slots(len(near), proxies, by_numa[numa]),
                nic=nic.name,
                driver=nic.driver or "",
                pci_address=nic.pci_address or "",
                pcie_root=roots.get(nic.pci_address or "", ""),
                numa=numa,
            )
        )
    return tuple(found)


def pcie_roots(machine: Machine, nics: tuple[Nic, ...]) -> dict[str, str]:
    """By the path of each device in sysfs, as Kubernetes' own drivers tell it."""
    found = {}
    for nic in nics:
        if nic.pci_address:
            path = os.path.realpath(machine.sys / "bus/pci/devices" / nic.pci_address)
            root = next((part for part in path.split("/") if _ROOT.fullmatch(part)), "")
            if root:
                found[nic.pci_address] = root
    return found


def environment(numbers: set[int]) -> dict[str, str]:
    """What a container with slots of these rails is told."""
    return {"EPFABRIC_RAILS": ",".join(map(str, sorted(numbers)))}


def device(rail: Rail, multiple: bool) -> list[dict[str, Any]]:
    """Devices of a ResourceSlice: one that many share, or one for each slot."""
    attributes: dict[str, Any] = {
        "rail": {"int": rail.number},
        "fabric": {"string": rail.fabric},
    }
    for name, text in (
        ("nic", rail.nic),
        ("driver", rail.driver),
        ("resource.kubernetes.io/pciBusID", rail.pci_address),
        ("resource.kubernetes.io/pcieRoot", rail.pcie_root),
    ):
        if text:
            attributes[name] = {"string": text[:64]}
    if rail.numa >= 0:
        attributes["numaNode"] = {"int": rail.numa}
    if not multiple:
        return [
            {"name": f"{rail.name}-slot-{slot}", "attributes": attributes}
            for slot in range(rail.slots)
        ]
    policy = {"default": "1", "validRange": {"min": "1"}}
    capacity = {"slots": {"value": str(rail.slots), "requestPolicy": policy}}
    shared = {"allowMultipleAllocations": True, "capacity": capacity}
    return [{"name": rail.name, "attributes": attributes, **shared}]


def _slots(cpus: int, proxies: int, rails: int) -> int:
    return max(1, min(MAX_SLOTS, cpus // max(1, proxies) // rails))


def _numa(nic: Nic) -> int:
    return -1 if nic.numa_node is None else nic.numa_node


def _candidate(nic: Nic) -> Candidate:
    return Candidate(
        name=nic.name,
        driver=nic.driver or "",
        pci_address=nic.pci_address or "",
        rdma_device=nic.rdma_device or "",
        hardware=True,
        addresses=nic.addresses,
    )
