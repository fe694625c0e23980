"""What is known of a node's NICs and links, as values; read by nic.look, decided on by nic.plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

SETTINGS = ("mtu", "roceMode", "trust", "tos", "pfc", "ecn")
# These stop traffic for a moment or break queue pairs; the others act on new connections only.
DISRUPTIVE = frozenset({"mtu", "trust", "pfc"})
# As devlink names ports of functions: of a physical, a virtual or a sub-function.
_REPRESENTOR = re.compile(r"(c[0-9]+)?pf[0-9]+((vf|sf)[0-9]+)?")
_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def is_pci(text: str) -> bool:
    return bool(_PCI.fullmatch(text))


@dataclass(frozen=True)
class Link:
    """A network interface as the kernel's netlink tells it; indexes are of this namespace."""

    name: str
    index: int
    mtu: int
    kind: str = ""
    """vlan, bond, veth …; empty for hardware."""
    master: int = 0
    """Index of the bond or bridge that it is a member of."""
    parent: int = 0
    """Index of the link below (of a VLAN, for example); 0 where it has none in this namespace."""
    min_mtu: int = 0
    max_mtu: int = 0
    """0 where the driver does not say."""
    up: bool = False
    """It has carrier and may send."""
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Route:
    """`index` is the link that it leaves by; `default` where it leads everywhere."""

    index: int
    default: bool


@dataclass(frozen=True)
class Network:
    links: Mapping[int, Link]
    routes: tuple[Route, ...] = ()
    api_links: Mapping[int, str] = field(default_factory=dict)
    """Links of the routes to the API server's addresses, with the address."""
    node_address: str = ""
    unknown: str = ""
    """What could not be found out; nothing may be changed then."""


@dataclass(frozen=True)
class Reading:
    """A setting's present value, or why there is none."""

    value: str | None
    reason: str = ""


@dataclass(frozen=True)
class Nic:
    """An interface or RDMA device that settings may be for. `index` is 0 without an interface."""

    name: str
    index: int = 0
    driver: str = ""
    pci_address: str = ""
    rdma_device: str = ""
    physical_function: str = ""
    """PCI address of the function that this one is a virtual function of."""
    port: str = ""
    """The driver's name of the port, such as p0, or pf0vf3 where it stands for a function."""
    hardware: bool = False
    addresses: tuple[str, ...] = ()
    readings: Mapping[str, Reading] = field(default_factory=dict)


def _stands_for_another(nic: Nic) -> bool:
    return bool(_REPRESENTOR.fullmatch(nic.port))


@dataclass(frozen=True)
class Node:
    nics: tuple[Nic, ...]
    network: Network

    def key(self, nic: Nic) -> str:
        """What names the NIC in the journal: names of interfaces change, serial numbers repeat.

        The same when further links of the function come: those that stand for virtual functions
        and the later ones go by their names.
        """
        if not nic.pci_address or _stands_for_another(nic):
            return nic.name
        earlier = any(
            other.pci_address == nic.pci_address
            and not _stands_for_another(other)
            and (other.index, other.name) < (nic.index, nic.name)
            for other in self.nics
        )
        return nic.name if earlier else nic.pci_address

    def by_key(self, key: str) -> Nic | None:
        return next((nic for nic in self.nics if self.key(nic) == key), None)

    def link(self, nic: Nic) -> Link | None:
        return self.network.links.get(nic.index)
