"""Links, addresses and routes by netlink, and the MTU; the only module here that uses IPRoute."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from epfabric_agent.nic.facts import Link, Network, Route

# Of a container's pause for a moment: shown as links that come and go.
_GONE = (errno.ENODEV, errno.ENXIO)


def read(node_address: str, api_addresses: Iterable[str]) -> Network:
    """`api_addresses`: IP addresses, each on the way to the API server. Raises OSError."""
    from pyroute2 import IPRoute, NetlinkError

    try:
        with IPRoute() as netlink:
            addresses = _addresses(netlink)
            links = {
                message["index"]: _link(message, addresses.get(message["index"], ()))
                for message in netlink.get_links()
            }
            routes = tuple(_routes(netlink))
            api: dict[int, str] = {}
            for address in api_addresses:
                for index in _ways(netlink, address):
                    api.setdefault(index, address)
    except NetlinkError as error:
        raise OSError(error.code, f"the kernel does not tell links and routes: {error}") from error
    return Network(links=links, routes=routes, api_links=api, node_address=node_address)


def write_mtu(index: int, mtu: int) -> None:
    """Raises OSError."""
    from pyroute2 import IPRoute, NetlinkError

    try:
        with IPRoute() as netlink:
            netlink.link("set", index=index, mtu=mtu)
    except NetlinkError as error:
        raise OSError(error.code, f"MTU {mtu} is refused: {error}") from error


def resolve(host: str) -> tuple[str, ...]:
    """IP addresses of a host. Raises OSError."""
    try:
        return (str(ipaddress.ip_address(host.strip("[]"))),)
    except ValueError:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return tuple(sorted({str(entry[4][0]) for entry in found}))


def _addresses(netlink: Any) -> Mapping[int, tuple[str, ...]]:
    found: dict[int, list[str]] = {}
    for message in netlink.get_addr():
        address = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
        if address and not address.startswith("fe80:"):
            found.setdefault(message["index"], []).append(address)
    return {index: tuple(sorted(values)) for index, values in found.items()}


def _link(message: Any, addresses: tuple[str, ...]) -> Link:
    info = message.get_attr("IFLA_LINKINFO")
    elsewhere = message.get_attr("IFLA_LINK_NETNSID") is not None
    return Link(
        name=message.get_attr("IFLA_IFNAME"),
        index=message["index"],
        mtu=message.get_attr("IFLA_MTU") or 0,
        kind=(info.get_attr("IFLA_INFO_KIND") if info else "") or "",
        master=message.get_attr("IFLA_MASTER") or 0,
        parent=0 if elsewhere else message.get_attr("IFLA_LINK") or 0,
        min_mtu=message.get_attr("IFLA_MIN_MTU") or 0,
        max_mtu=message.get_attr("IFLA_MAX_MTU") or 0,
        up=message.get_attr("IFLA_OPERSTATE") in ("UP", "UNKNOWN") and bool(message["flags"] & 1),
        addresses=addresses,
    )


def _routes(netlink: Any) -> Iterator[Route]:
    """Of all tables and both families; a route over several links counts for each."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for message in netlink.get_routes(family=family):
            if message["type"] != 1:  # RTN_UNICAST; not local, broadcast or unreachable
                continue
            default = message["dst_len"] == 0
            for index in _outputs(message):
                yield Route(index, default)


def _outputs(message: Any) -> Iterator[int]:
    if index := message.get_attr("RTA_OIF"):
        yield index
    for hop in message.get_attr("RTA_MULTIPATH") or ():
        yield hop["oif"]


def _ways(netlink: Any, address: str) -> list[int]:
    """Links by which the kernel would send to `address`; none where there is no way."""
    from pyroute2 import NetlinkError

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        messages = netlink.route("get", dst=address, family=family)
    except NetlinkError as error:
        if error.code in (errno.ENETUNREACH, errno.EHOSTUNREACH, *_GONE):
            return []
        raise
    return [index for message in messages for index in _outputs(message)]
