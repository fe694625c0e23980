"""The versions of the protocol between agents, and who does not fit; for client and server.

Records between cores have a version of their own, in each session's description (blob.h).
"""

from __future__ import annotations

from epfabric.versions import Span

from epfabric_agent.proto import peer_pb2 as pb

SPOKEN = Span(1, 1)


def refusal(caller: pb.Caller, node: str, spoken: Span) -> str | None:
    """Why the agent of `node` refuses the caller; None where both have a version in common."""
    theirs = Span(caller.oldest, caller.newest)
    if theirs.meets(spoken):
        return None
    return (
        f"the agent of node {caller.node} speaks {theirs} of the protocol between agents, that of "
        f"node {node} {spoken}: the ranks of a group can be on such two nodes only when both run "
        "agents that fit; wait until both are updated (kubectl get epfn -o wide), or set back what "
        "was changed"
    )
