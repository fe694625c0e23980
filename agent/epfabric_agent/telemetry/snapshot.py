"""What the agent knows at one moment, as telemetry wants it; made by the agent's session code.

All counts are absolute since the session (or the core's group) began and never fall while its
handle lives. A handle is a number that one process never uses twice, so that counts which begin at
zero again are seen to be new ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from epfabric_crds.node import NicRoom

from epfabric_agent.telemetry.histogram import Histogram

PHASES = ("arrive", "local", "network", "release", "total")
"""Phases of a barrier in the order in which they happen; `total` spans them all."""


@dataclass(frozen=True)
class PeerSample:
    """What one session has sent to the ranks of one node (its own node included)."""

    node: str
    transport: str
    """What carried it: loopback on the own node, else verbs or libfabric."""
    writes: int
    bytes: int
    signals: int


@dataclass(frozen=True)
class SessionSample:
    """One rank of one pod on this node."""

    namespace: str
    group: str
    handle: int
    rank: int
    completed: Mapping[str, int] = field(default_factory=dict)
    """Commands retired without being refused, by op, over all rings."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Refused commands by reason."""
    refused_slots: Mapping[str, int] = field(default_factory=dict)
    """The same in slots."""
    masked: int = 0
    """Commands without effect, since their destination is masked."""
    masked_slots: int = 0
    """The same in slots."""
    fifo_depth: int = 0
    """Slots taken from the rings and not yet retired."""
    inflight: int = 0
    """Operations that the proxies have posted and that are not yet complete."""
    joined: int = 0
    """WRITEs that went in the network write of the one before."""
    mended: int = 0
    """Connections that broke and that this rank's proxies made anew, at this end."""
    replayed: int = 0
    """Operations that were sent again on them."""
    moved: int = 0
    """Of these connections, that go over another NIC than before."""
    peers: tuple[PeerSample, ...] = ()


@dataclass(frozen=True)
class BarrierSample:
    """The barriers of one group as this node saw them, over all epochs of the core's group."""

    namespace: str
    group: str
    handle: int
    phases: Mapping[str, Histogram]
    """By name, of PHASES; a phase that this node never saw may be absent."""
    stragglers: Mapping[int, int] = field(default_factory=dict)
    """How often a rank was the last to arrive; only the leader's node knows."""
    rails: Mapping[str, Histogram] = field(default_factory=dict)
    """The same of barriers along rails."""
    masked: int | None = None
    """Lost ranks that the epoch goes on without; None on nodes that do not coordinate it."""


@dataclass(frozen=True)
class GroupSample:
    """What happened to one group as such, as this agent knows it."""

    namespace: str
    group: str
    handle: int
    epochs: Mapping[str, int] = field(default_factory=dict)
    """By result (opened, completed, failed); only the coordinator's agent knows."""
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Requests of its pods that were refused, by code of the session protocol."""


@dataclass(frozen=True)
class Snapshot:
    """Everything at once; whatever is absent has ended."""

    transport: str = ""
    """The transport in use: verbs, libfabric or loopback; empty while none is chosen."""
    provider: str = ""
    """The transport's provider, such as `tcp;ofi_rxm`."""
    sessions: tuple[SessionSample, ...] = ()
    barriers: tuple[BarrierSample, ...] = ()
    groups: tuple[GroupSample, ...] = ()
    nics: tuple[NicRoom, ...] = ()
    """RDMA devices that move data, and what is used of them."""
    traces_sent: int = 0
    """Barriers of which this agent's spans have arrived at the collector."""
    traces_lost: int = 0
    """Barriers of which this agent sent no spans though they were kept."""
    certificate_left_s: float | None = None
    """Until the certificate ends that other agents are shown; None without one."""


class Source(Protocol):
    """Gives the present snapshot. Called from the exporter's thread, so it must neither block
    for long nor touch what only the agent's own thread may touch."""

    def __call__(self) -> Snapshot: ...
