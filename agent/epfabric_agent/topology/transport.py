"""Which transport a node uses, and why: a pure decision, shown in status, metric and log."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from epfabric_crds.settings import Transport

TCP = "tcp;ofi_rxm"


@dataclass(frozen=True)
class Choice:
    """`type` is empty where the node can serve nothing; `reason` then says what to do."""

    type: str
    provider: str
    reason: str

    @property
    def usable(self) -> bool:
        return bool(self.type)


def choose(wanted: Transport, rdma_devices: Collection[str]) -> Choice:
    """`rdma_devices`: those that verbs can open on this node."""
    if wanted.type == "loopback":
        return Choice("loopback", "", "spec.transport.type is loopback: groups stay on their node")
    found = _found(rdma_devices)
    if wanted.type == "verbs":
        return _none(f"{found}; this agent has no verbs transport: choose libfabric or auto")
    if wanted.allow_tcp:
        by = "spec.transport.type is libfabric" if wanted.type == "libfabric" else "type is auto"
        return Choice("libfabric", TCP, f"{by}; {found}; tcp is allowed (allowTcp)")
    return _none(
        f"{found}, and tcp is not allowed: set spec.transport.allowTcp to true (for trials), "
        "or type to loopback for groups of one node"
    )


def _found(rdma_devices: Collection[str]) -> str:
    if not rdma_devices:
        return "no RDMA NIC was found"
    listed = ", ".join(sorted(rdma_devices)[:8])
    return f"the RDMA NIC(s) {listed} cannot be driven by this agent yet"


def _none(reason: str) -> Choice:
    return Choice("", "", reason)
