"""Which transport a node uses, and why: a pure decision, shown in status, metric and log."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from epfabric_crds.settings import Nics, Transport

from epfabric_agent.topology.rdma import IB, RdmaPort, choose_gid

TCP = "tcp;ofi_rxm"
EFA = "efa"
_SEPARATE = (
    "; taken for rails that do not reach each other, so that ranks share the first of them: set "
    "spec.nics.rails to Connected where all reach each other, or to Separate"
)
Port = tuple[str, int, str]
"""Device, port, GID: what the core opens. An EFA device needs no GID: it may be empty."""


@dataclass(frozen=True)
class Choice:
    """`type` is empty where the node can serve nothing; `reason` then says what to do."""

    type: str
    provider: str
    reason: str
    ports: tuple[Port, ...] = ()
    """Those that verbs, or EFA's provider, moves the data over; a proxy has one of them."""
    connected: bool = False
    """Whether each of them reaches all of other nodes, not only the one at its place there."""

    @property
    def usable(self) -> bool:
        return bool(self.type)


class Refusals:
    """Ports that no core could be made with, until they are found otherwise than they were then."""

    def __init__(self) -> None:
        self.reasons: dict[Port, str] = {}
        self._found: dict[Port, RdmaPort | None] = {}

    def add(self, ports: Sequence[Port], reason: str, found: Sequence[RdmaPort]) -> None:
        """Remembers those that the reason names, or all of them where it names none."""
        for port in _named(ports, reason) or ports:
            self.reasons[port] = reason
            self._found[port] = _as_found(port, found)

    def keep(self, found: Sequence[RdmaPort]) -> None:
        """Forgets those that are not among `found` just as they were."""
        for port, was in list(self._found.items()):
            if was is None or _as_found(port, found) != was:
                del self._found[port], self.reasons[port]

    def clear(self) -> None:
        self.reasons.clear()
        self._found.clear()


def choose(
    wanted: Transport,
    nics: Nics,
    ports: Sequence[RdmaPort],
    meant: Collection[str],
    refused: Mapping[Port, str] = MappingProxyType({}),
) -> Choice:
    """`ports`: of devices that verbs or EFA's provider can open; `meant`: the fabric's devices.

    `refused`: why no core could be made with a port.
    """
    if wanted.type == "loopback":
        return Choice("loopback", "", "spec.transport.type is loopback: groups stay on their node")
    cidrs = nics.selector.cidrs if nics.selector else ()
    usable: list[Port] = []
    efa: list[Port] = []
    unfit: list[str] = []
    others: list[str] = []
    for port in ports:
        gids = [gid for gid in port.gids if port.infiniband or gid.kind != IB]
        gid = choose_gid(gids, nics.roce_mode, cidrs)
        key = (port.device, port.number, gid)
        if port.device not in meant:
            others.append(f"{port.device} is not among spec.nics")
        elif why := refused.get(key, "") or _unfit(port, wanted):
            why = why.removeprefix(f"{port.device} is unfit: ")
            unfit.append(f"{port.device} is unfit: {why}")
        elif why := _unusable(port, gid, nics.roce_mode or "v2"):
            others.append(f"{port.device} {why}")
        elif port.driver == EFA:
            efa.append(key)
        else:
            usable.append(key)
    by = f"spec.transport.type is {wanted.type}" if wanted.type != "auto" else "type is auto"
    without = "".join(f"; {why}" for why in unfit[:8])
    if usable and wanted.type != "libfabric":
        named = ", ".join(f"{device} ({gid})" for device, _, gid in usable[:8])
        fabric = {port.device for port in ports if port.infiniband}
        connected = nics.rails == "Connected" or (
            nics.rails == "Auto" and all(device in fabric for device, _, _ in usable)
        )
        taken = _SEPARATE if nics.rails == "Auto" and not connected and len(usable) > 1 else ""
        text = f"{by}; over {named}{without}{taken}"
        return Choice("verbs", "", text, tuple(usable), connected)
    if efa and not (wanted.type == "libfabric" and wanted.allow_tcp):  # such agents have no device
        named = ", ".join(device for device, _, _ in efa[:8])
        text = f"{by}; over EFA: {named}{without}"
        return Choice("libfabric", EFA, text, tuple(efa), nics.rails != "Separate")
    found = _found(usable, unfit + others)
    if wanted.type == "verbs":
        return _none(f"{found}: bring one up or choose it by spec.nics.selector, or choose auto")
    if wanted.allow_tcp:
        return Choice("libfabric", TCP, f"{by}; {found}; tcp is allowed (allowTcp)")
    return _none(
        f"{found}, and tcp is not allowed: set spec.transport.allowTcp to true (for trials), "
        "or type to loopback for groups of one node"
    )


def _unfit(port: RdmaPort, wanted: Transport) -> str:
    if port.driver == EFA:
        return "it has no reliable connections (EFA)" if wanted.type == "verbs" else ""
    by_interface = port.interface or any(gid.kind != IB for gid in port.gids)
    if not port.infiniband and not by_interface:
        return "it has no network interface and is not InfiniBand"
    return ""


def _unusable(port: RdmaPort, gid: str, roce: str) -> str:
    if not port.active:
        return f"is down (port {port.number})"
    return (
        ""
        if gid or port.driver == EFA
        else f"has no GID of RoCE {roce}: give its interface an address"
    )


def _named(ports: Sequence[Port], text: str) -> list[Port]:
    """Those of the device that the text names first: it may go on to list the others."""
    at = {}
    for device, _, _ in ports:
        if match := re.search(rf"(?<![\w-]){re.escape(device)}(?![\w-])", text):
            at[device] = match.start()
    first = min(at, key=at.__getitem__, default="")
    of_device = [port for port in ports if port[0] == first]
    exact = [port for port in of_device if f"port {port[1]} of RDMA device {first}" in text]
    return exact or of_device


def _as_found(port: Port, found: Sequence[RdmaPort]) -> RdmaPort | None:
    return next((f for f in found if (f.device, f.number) == port[:2]), None)


def _found(usable: Sequence[Port], left_out: Sequence[str]) -> str:
    if usable:
        listed = ", ".join(device for device, _, _ in usable[:8])
        return f"the RDMA NIC(s) {listed} are for verbs"
    if left_out:
        return f"no RDMA NIC can be used: {'; '.join(left_out[:8])}"
    return "no RDMA NIC was found"


def _none(reason: str) -> Choice:
    return Choice("", "", reason)
