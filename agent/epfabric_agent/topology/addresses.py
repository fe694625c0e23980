"""IP addresses by interface, from the kernel by netlink; the default of topology.machine."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping

_log = logging.getLogger(__name__)


def addresses() -> Mapping[str, tuple[str, ...]]:
    """Global addresses of every interface; empty where the kernel does not say."""
    from pyroute2 import IPRoute, NetlinkError

    found: dict[str, list[str]] = {}
    try:
        with IPRoute() as netlink:
            for message in netlink.get_addr():
                attributes = dict(message["attrs"])
                address = attributes.get("IFA_LOCAL") or attributes.get("IFA_ADDRESS")
                try:
                    name = socket.if_indextoname(message["index"])
                except OSError:  # the interface went meanwhile
                    continue
                if address and not address.startswith("fe80:"):
                    found.setdefault(name, []).append(address)
    except (OSError, NetlinkError) as error:
        _log.info("the kernel does not tell addresses: %s", error)
    return {name: tuple(sorted(values)) for name, values in found.items()}
