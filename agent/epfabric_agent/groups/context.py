"""What a part of a group needs of its agent; made anew when settings change, for groups.part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from epfabric_agent.groups.coordinator import Coordinator
from epfabric_agent.groups.epoch_core import EpochCore
from epfabric_agent.peers.client import Agent, PeerClient


@dataclass(frozen=True)
class NodeContext:
    node: str
    endpoint: str
    """ip:port of the agent's own peer server."""
    core: EpochCore
    client: PeerClient
    join_timeout_s: float
    barrier_timeout_ms: int
    mask: bool
    """A lost rank is masked and its epoch goes on, where the group is coordinated here."""
    dissemination: bool
    """Barriers between nodes have no leader, where the group is coordinated here."""
    nic_faults: Callable[[float], str]
    """For people: error counters of the node's NICs that moved in the last so many seconds."""
    find: Callable[[str], Awaitable[Agent | None]]
    """The other agent that coordinates a group, as far as that is known now."""
    observe: Callable[[], None]
    """Keeps the last counts of what is about to be closed; called off the agent's loop."""
    changed: Callable[[], None]
    """Something that a status shows may have changed."""
    give_up: Callable[[str], None]
    """Ends the agent, with the reason: something of its core can neither be ended nor be left."""
    cause_s: float = field(default=0.5, kw_only=True)
    """For the cause of a failed link to be heard; the pods' abort words are set by then."""


@dataclass(frozen=True)
class PartContext(NodeContext):
    """A node's context with what the hub adds."""

    coordinator: Callable[[str], Coordinator | None]
    """The group's coordinator if it is here."""
    next_handle: Callable[[], int]
    """A number for the core's group, never used before."""
    orphaned: Callable[[str], None]
    """The group's epoch fails here, since its coordinator on another node was lost."""
    epoch_ended: Callable[[str, int, int], None]
    """Group, epoch and handle of what has ended in the core."""
