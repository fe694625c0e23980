"""Which links must not be touched, and why: a pure decision, for nic.plan.

A link that carries the node's address, a default route or the route to the API server takes
everything with it that it stands on or that stands on it: parents, members, masters, functions.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Iterable

from epfabric_agent.nic.facts import Link, Network, Nic, Node

# A veth's other end is no part of it.
_PARENTLESS = frozenset({"veth"})
# A bridge's internal port tells neither its bridge nor the NICs in it: all of them count as one.
_SWITCH = "openvswitch"
_TOGETHER = ", and hangs together with it"


def protected(node: Node) -> dict[int, str]:
    """Why each of these links (by index) may not be changed."""
    network = node.network
    why = dict(_carriers(network))
    near = _neighbours(network.links.values(), node.nics)
    todo = deque(why)
    while todo:
        index = todo.popleft()
        for other in near.get(index, ()):
            if other not in why:
                why[other] = why[index].removesuffix(_TOGETHER) + _TOGETHER
                todo.append(other)
    return why


def _carriers(network: Network) -> Iterable[tuple[int, str]]:
    links = network.links
    for index, address in network.api_links.items():
        if index in links:
            yield index, f"{links[index].name} carries the route to the API server {address}"
    for route in network.routes:
        if route.default and route.index in links:
            yield route.index, f"{links[route.index].name} carries a default route"
    for index, link in links.items():
        if any(_same(network.node_address, address) for address in link.addresses):
            yield index, f"{link.name} carries the node's address {network.node_address}"


def _same(one: str, other: str) -> bool:
    """Texts of one address may differ: IPv6 in capitals, zeros that are written out."""
    try:
        return ipaddress.ip_address(one.strip("[]")) == ipaddress.ip_address(other)
    except ValueError:
        return one == other


def _neighbours(links: Iterable[Link], nics: Iterable[Nic]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    links = list(links)
    known = {link.index for link in links}

    def join(one: int, other: int) -> None:
        if one in known and other in known:
            found.setdefault(one, set()).add(other)
            found.setdefault(other, set()).add(one)

    for link in links:
        if link.master:
            join(link.index, link.master)
        if link.parent and link.kind not in _PARENTLESS:
            join(link.index, link.parent)
    switches = [link.index for link in links if link.kind == _SWITCH]
    for index in switches[1:]:
        join(switches[0], index)
    nics = list(nics)
    by_pci: dict[str, list[int]] = {}
    for nic in nics:
        if nic.pci_address and nic.index:
            by_pci.setdefault(nic.pci_address, []).append(nic.index)
    for nic in nics:
        # Ports of one function, and the function below a virtual one.
        for other in by_pci.get(nic.pci_address, []) + by_pci.get(nic.physical_function, []):
            if other != nic.index:
                join(nic.index, other)
    return found
