"""Which NICs a fabric's selector means: pure, for nic.plan and the agent's labels."""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Iterable

from epfabric_crds import node
from epfabric_crds.settings import NicSelector

from epfabric_agent.nic.facts import Nic


def selects(selector: NicSelector | None, nic: Nic) -> bool:
    """One entry of every list that is given must match.

    Links without hardware (VLANs, bonds, pods' veths) are meant only where names or cidrs say so.
    """
    chosen = selector or NicSelector()
    by_text = bool(chosen.names or chosen.cidrs)
    if not nic.hardware and not by_text:
        return False
    return (
        (not chosen.drivers or nic.driver in chosen.drivers)
        and (not chosen.pci_addresses or nic.pci_address in chosen.pci_addresses)
        and (not chosen.names or _named(chosen.names, (nic.name, nic.rdma_device)))
        and (not chosen.cidrs or _within(chosen.cidrs, nic.addresses))
    )


def rdma_devices_of(selector: NicSelector | None, nics: Iterable[node.Nic]) -> frozenset[str]:
    """The fabric's RDMA devices, among the NICs of the node's status."""
    return frozenset(
        nic.rdma_device
        for nic in nics
        if nic.rdma_device
        and selects(
            selector,
            Nic(
                name=nic.name,
                driver=nic.driver or "",
                pci_address=nic.pci_address or "",
                rdma_device=nic.rdma_device,
                hardware=True,
                addresses=nic.addresses,
            ),
        )
    )


def _named(patterns: Iterable[str], names: Iterable[str]) -> bool:
    # Only * is special in the API; a bracket is an ordinary character of a name.
    escaped = [pattern.replace("[", "[[]").replace("?", "[?]") for pattern in patterns]
    return any(fnmatch.fnmatchcase(name, p) for name in names if name for p in escaped)


def _within(cidrs: Iterable[str], addresses: Iterable[str]) -> bool:
    networks = [ipaddress.ip_network(cidr, strict=False) for cidr in cidrs]
    return any(ipaddress.ip_address(a) in network for a in addresses for network in networks)
