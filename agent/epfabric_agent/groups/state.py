"""What a group's coordinator knows and says, as values; made by membership, used by its edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from epfabric_agent.proto import peer_pb2 as pb

Phase = Literal["Forming", "Ready", "Completed", "Failed"]
MAX_REASON = 1000  # characters
OPEN_S = 40.0  # once all ranks are there


@dataclass(frozen=True)
class Entrant:
    """A rank that is in an epoch, or waits for the next one."""

    rank: int
    world_size: int
    node: str
    pod: str
    region_bytes: int
    blob: bytes

    def __str__(self) -> str:
        return f"{self.pod} on node {self.node}"


@dataclass(frozen=True)
class NodePart:
    """A node of the group and its ranks as ranges."""

    node: str
    endpoint: str
    ranks: str


@dataclass(frozen=True)
class GroupState:
    """What the world is told of the group."""

    phase: Phase
    reason: str
    epoch: int
    world_size: int
    nodes: tuple[NodePart, ...]
    masked: str = ""
    """Lost ranks that the epoch goes on without, as ranges."""


@dataclass(frozen=True)
class Send:
    """To the agent of `node`; dropped when it is no longer attached."""

    node: str
    message: pb.ToMember


@dataclass(frozen=True)
class Publish:
    state: GroupState


Action = Send | Publish


@dataclass(frozen=True)
class Limits:
    """Bounds of the coordinator's waits, in seconds; what a loss means; how barriers are made."""

    join_s: float
    open_s: float = OPEN_S
    quiesce_s: float = 15.0
    mask: bool = False
    """A lost rank is masked and its epoch goes on; else the epoch fails."""
    dissemination: bool = False
    """Barriers between nodes have no leader."""
