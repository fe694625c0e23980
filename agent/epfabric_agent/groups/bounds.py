"""What another agent may say of a group, however well it is known: bounds of its values.

Used by the peer server and admission (what a member says) and by part_epoch (what a coordinator
says). A value out of bounds is refused with its reason before anything is kept or given on.
"""

from __future__ import annotations

from collections.abc import Mapping

from epfabric import limits

from epfabric_agent.groups.local_rank import LocalRank
from epfabric_agent.proto import peer_pb2 as pb

MAX_EPOCH = (1 << 32) - 1  # the core's numbers have 32 bits
MAX_LAST_EPOCH = MAX_EPOCH // 2  # that a coordinator goes on from: as many are left behind it
MAX_NAME = 512  # of a pod or a node, for people
MAX_ENDPOINT = 64
MAX_BLOB = 32 << 10  # 16 proxies with 16 regions each, over 8 NICs, take 30 KiB
UID_BYTES = 16


def fault_of_attach(attach: pb.Attach) -> str | None:
    """Why a node cannot take part in a group as it says."""
    if not 0 < len(attach.endpoint) <= MAX_ENDPOINT:
        return f"an endpoint has 1 to {MAX_ENDPOINT} characters, not {len(attach.endpoint)}"
    return None


def fault_of_rank(pod: str, region_bytes: int, blob: bytes) -> str | None:
    """Why what is said of a rank cannot be."""
    if len(pod) > MAX_NAME:
        return f"a pod's name has at most {MAX_NAME} characters, not {len(pod)}"
    if region_bytes > limits.REGION_SPACE_BYTES:
        return f"a rank has at most {limits.REGION_SPACE_BYTES} bytes, not {region_bytes}"
    if len(blob) > MAX_BLOB:
        return f"a session's description has at most {MAX_BLOB} bytes, not {len(blob)}"
    return None


def fault_of_plan(plan: pb.Open, node: str, here: Mapping[int, LocalRank]) -> str | None:
    """Why an epoch cannot open like that on `node`, whose ranks are `here`."""
    world = len(plan.ranks)
    if not 0 < plan.epoch <= MAX_EPOCH:
        return f"no group has epoch {plan.epoch}"
    if not 0 < world <= limits.MAX_WORLD or plan.leader_rank >= world:
        return f"a world of {world} ranks with leader {plan.leader_rank}"
    if len(plan.uid) != UID_BYTES or len(set(plan.nodes)) != len(plan.nodes):
        return "a group without a uid, or a node that is there twice"
    for rank, info in enumerate(plan.ranks):
        if info.rank != rank or info.node >= len(plan.nodes):
            return f"rank {info.rank} on node {info.node} in the place of rank {rank}"
        if fault := fault_of_rank("", info.region_bytes, info.blob):
            return f"rank {rank}: {fault}"
    mine = [rank for rank, info in enumerate(plan.ranks) if plan.nodes[info.node] == node]
    if not mine or any(rank in here and here[rank].world_size != world for rank in mine):
        return f"a world of {world} ranks that is not the one of the ranks here"
    return None
