"""RDMA devices, their ports and GIDs; the only module that imports pyverbs, and late.

pyverbs must be of the same version as the machine's rdma-core, so it comes with the system and may
be absent. Where no device exists, listing them raises: both are an ordinary "none" here.
"""

from __future__ import annotations

import importlib
import ipaddress
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

INFINIBAND = 1  # IBV_LINK_LAYER_INFINIBAND
IB, ROCE_V1, ROCE_V2 = 0, 1, 2  # ibv_gid_type
ACTIVE = 4  # ibv_port_state
MAX_PORTS = 16
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gid:
    address: str
    """As an IP address; IPv4 where it is one."""
    kind: int


@dataclass(frozen=True)
class RdmaPort:
    device: str
    number: int
    active: bool
    gids: tuple[Gid, ...]
    infiniband: bool = False
    """Its link layer; such a port needs no network interface."""
    interface: bool = True
    driver: str = ""
    """The kernel's; empty where unknown. This and `interface` are discover's."""


def openable_devices(load: Any = importlib.import_module) -> tuple[str, ...]:
    """Names of the devices that libibverbs lists."""
    try:
        device = load("pyverbs.device")
    except ImportError as error:
        _log.debug("no pyverbs: %s", error)
        return ()
    try:
        return tuple(sorted(found.name.decode() for found in device.get_device_list()))
    except Exception as error:  # PyverbsRDMAError; its class is not there without pyverbs
        _log.debug("no RDMA device: %s", error)
        return ()


def find_ports(load: Any = importlib.import_module) -> tuple[RdmaPort, ...]:
    """Every port of every device that can be opened. Never raises."""
    found: list[RdmaPort] = []
    for name in openable_devices(load):
        try:
            found += _ports_of(load("pyverbs.device"), name)
        except Exception as error:  # as above
            _log.warning("the RDMA device %s cannot be read: %s", name, error)
    return tuple(found)


def _ports_of(module: Any, name: str) -> list[RdmaPort]:
    with module.Context(name=name) as device:
        ports = {
            number: device.query_port(number)
            for number in range(1, min(device.query_device().phys_port_cnt, MAX_PORTS) + 1)
        }
        size = max(sum(port.gid_tbl_len for port in ports.values()), 1)
        table = device.query_gid_table(size)
        return [
            RdmaPort(
                device=name,
                number=number,
                active=port.state == ACTIVE,
                gids=tuple(
                    Gid(spoken(gid.gid_str()), int(gid.gid_type))
                    for gid in table
                    if gid.port_num == number
                ),
                infiniband=port.link_layer == INFINIBAND,
            )
            for number, port in ports.items()
        ]


def spoken(gid: str) -> str:
    """`0000:…:ffff:0a09:0001` as 10.9.0.1, others as IPv6 addresses."""
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def choose_gid(
    gids: Iterable[Gid], roce: Literal["v1", "v2"] | None, cidrs: Iterable[str] = ()
) -> str:
    """The GID to use, by its kind and address, never by its index; empty where none fits.

    RoCE v2 unless v1 is asked for (InfiniBand has one kind only); then what lies in `cidrs`; then
    IPv4 before IPv6 before link-local, the lowest first.
    """
    kinds = (IB, ROCE_V1) if roce == "v1" else (IB, ROCE_V2)
    networks = [ipaddress.ip_network(cidr, strict=False) for cidr in cidrs]

    def order(gid: Gid) -> tuple[bool, bool, int, int]:
        address = ipaddress.ip_address(gid.address)
        outside = bool(networks) and not any(address in network for network in networks)
        return (outside, address.is_link_local, address.version, int(address))

    fitting = sorted((gid for gid in gids if gid.kind in kinds), key=order)
    return fitting[0].address if fitting else ""
