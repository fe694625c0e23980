"""Whether a caller may speak for the node and fabric that it claims; for the peer server."""

from __future__ import annotations

from collections.abc import Iterable

from epfabric_agent.pki.identity import node_of
from epfabric_agent.proto import peer_pb2 as pb


def refusal(caller: pb.Caller, names: Iterable[str], fabric: str) -> str | None:
    """Why the call is refused; None where it is not. `names`: the certificate's SAN entries."""
    if caller.fabric != fabric:
        return f"this agent serves fabric {fabric}, not {caller.fabric!r}"
    node = node_of(names, fabric)
    if node is None:
        return f"the certificate is not that of an agent of fabric {fabric}"
    if node != caller.node:
        return f"the certificate is that of node {node}, not of {caller.node!r}"
    return None
