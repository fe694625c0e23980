"""Which transport a node uses, and why: a pure decision, shown in status, metric and log."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from epfabric_crds.settings import Nics, Transport

from epfabric_agent.topology.rdma import RdmaPort, choose_gid

TCP = "tcp;ofi_rxm"
Port = tuple[str, int, str]
"""Device, port, GID: what the core opens."""


@dataclass(frozen=True)
class Choice:
    """`type` is empty where the node can serve nothing; `reason` then says what to do."""

    type: str
    provider: str
    reason: str
    ports: tuple[Port, ...] = ()
    """Those that verbs moves the data over; a proxy has one of them."""

    @property
    def usable(self) -> bool:
        return bool(self.type)


def choose(
    wanted: Transport, nics: Nics, ports: Sequence[RdmaPort], meant: Collection[str]
) -> Choice:
    """`ports`: those of devices that verbs can open; `meant`: the fabric's devices."""
    if wanted.type == "loopback":
        return Choice("loopback", "", "spec.transport.type is loopback: groups stay on their node")
    cidrs = nics.selector.cidrs if nics.selector else ()
    usable: list[Port] = []
    unfit: list[str] = []
    for port in ports:
        gid = choose_gid(port.gids, nics.roce_mode, cidrs)
        if why := _unfit(port, gid, meant, nics.roce_mode or "v2"):
            unfit.append(f"{port.device} {why}")
        else:
            usable.append((port.device, port.number, gid))
    if usable and wanted.type != "libfabric":
        by = "spec.transport.type is verbs" if wanted.type == "verbs" else "type is auto"
        named = ", ".join(f"{device} ({gid})" for device, _, gid in usable[:8])
        return Choice("verbs", "", f"{by}; over {named}", tuple(usable))
    found = _found(usable, unfit)
    if wanted.type == "verbs":
        return _none(f"{found}: bring one up or choose it by spec.nics.selector, or choose auto")
    if wanted.allow_tcp:
        by = "spec.transport.type is libfabric" if wanted.type == "libfabric" else "type is auto"
        return Choice("libfabric", TCP, f"{by}; {found}; tcp is allowed (allowTcp)")
    return _none(
        f"{found}, and tcp is not allowed: set spec.transport.allowTcp to true (for trials), "
        "or type to loopback for groups of one node"
    )


def _unfit(port: RdmaPort, gid: str, meant: Collection[str], roce: str) -> str:
    if port.device not in meant:
        return "is not among spec.nics"
    if not port.active:
        return f"is down (port {port.number})"
    return "" if gid else f"has no GID of RoCE {roce}: give its interface an address"


def _found(usable: Sequence[Port], unfit: Sequence[str]) -> str:
    if usable:
        listed = ", ".join(device for device, _, _ in usable[:8])
        return f"the RDMA NIC(s) {listed} are for verbs"
    if unfit:
        return f"no RDMA NIC can be used: {'; '.join(unfit[:8])}"
    return "no RDMA NIC was found"


def _none(reason: str) -> Choice:
    return Choice("", "", reason)
