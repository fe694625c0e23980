"""Why a rank is not let into an epoch, as the message that says so; for membership."""

from __future__ import annotations

from collections.abc import Mapping

from epfabric import limits
from epfabric.messages import BAD_REQUEST

from epfabric_agent.groups.bounds import fault_of_rank
from epfabric_agent.groups.state import MAX_REASON, Entrant, Send
from epfabric_agent.proto import peer_pb2 as pb


def outside(entrant: Entrant) -> Send | None:
    """A rank or a world that cannot be."""
    if fault := fault_of_rank(entrant.pod, entrant.region_bytes, entrant.blob):
        return refused(entrant, BAD_REQUEST, fault)
    if not 1 <= entrant.world_size <= limits.MAX_WORLD:
        text = f"a world has 1 to {limits.MAX_WORLD} ranks, not {entrant.world_size}"
        return refused(entrant, "world-size", text)
    if entrant.rank >= entrant.world_size:
        text = f"rank {entrant.rank} is outside a world of {entrant.world_size} ranks"
        return refused(entrant, "rank", text)
    return None


def misfit(entrant: Entrant, group: str, world: int, members: Mapping[int, Entrant]) -> Send | None:
    """A rank that does not go with the members of the epoch that forms."""
    if entrant.world_size != world:
        other = next(iter(members.values()))
        return refused(
            entrant,
            "world-size",
            f"{entrant} says that group {group} has {entrant.world_size} ranks, {other} "
            f"said {world}: give every pod of the group the same WORLD_SIZE",
        )
    holder = members.get(entrant.rank)
    if holder is not None:
        return refused(entrant, "duplicate-rank", duplicate(entrant, holder))
    return None


def refused(entrant: Entrant, code: str, message: str) -> Send:
    reply = pb.Refused(rank=entrant.rank, code=code, message=message[:MAX_REASON])
    return Send(entrant.node, pb.ToMember(refused=reply))


def duplicate(entrant: Entrant, holder: Entrant) -> str:
    return (
        f"rank {entrant.rank} is held by {holder}; {entrant} asked for it too: "
        "give each pod of the group a rank of its own"
    )
