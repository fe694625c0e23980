"""Turns a snapshot into readings: which metric, of which group, with which attributes, how much.

Pure; called by the ledger. METRICS is the one table of everything that is measured by group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from epfabric_agent.telemetry.histogram import Histogram
from epfabric_agent.telemetry.snapshot import BarrierSample, GroupSample, SessionSample, Snapshot

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class MetricInfo:
    """A metric's name, kind, unit (UCUM) and description as they are exported."""

    name: str
    kind: Kind
    unit: str
    description: str


BARRIER_DURATION = MetricInfo(
    "epfabric.barrier.duration", "histogram", "s", "Duration of barriers by phase"
)
STRAGGLERS = MetricInfo(
    "epfabric.barrier.stragglers", "counter", "{barrier}", "Barriers that waited last for this rank"
)
COMMANDS = MetricInfo("epfabric.commands", "counter", "{command}", "Commands retired, by result")
SLOTS = MetricInfo("epfabric.slots", "counter", "{slot}", "Slots of retired commands, by result")
WRITES = MetricInfo("epfabric.writes", "counter", "{write}", "Writes sent to a node's ranks")
BYTES = MetricInfo("epfabric.bytes", "counter", "By", "Payload sent to a node's ranks")
SIGNALS = MetricInfo("epfabric.signals", "counter", "{signal}", "Signals sent to a node's ranks")
FIFO_DEPTH = MetricInfo("epfabric.fifo.depth", "gauge", "{slot}", "Slots taken, not yet retired")
INFLIGHT = MetricInfo(
    "epfabric.inflight", "gauge", "{operation}", "Operations posted, not yet complete"
)
JOINED = MetricInfo("epfabric.joined", "counter", "{command}", "WRITEs sent with the one before")
MENDED = MetricInfo("epfabric.mended", "counter", "{connection}", "Broken connections made anew")
REPLAYED = MetricInfo("epfabric.replayed", "counter", "{operation}", "Operations sent again there")
MOVED = MetricInfo("epfabric.moved", "counter", "{connection}", "Connections gone to another NIC")
GROUP_SESSIONS = MetricInfo("epfabric.group.sessions", "gauge", "{session}", "Sessions of a group")

MASKED_RANKS = MetricInfo(
    "epfabric.group.masked", "gauge", "{rank}", "Lost ranks that a group goes on without"
)
EPOCHS = MetricInfo("epfabric.group.epochs", "counter", "{epoch}", "Epochs of a group, by result")
REFUSALS = MetricInfo(
    "epfabric.session.refusals", "counter", "{request}", "Requests of pods that were refused"
)

METRICS = (
    BARRIER_DURATION,
    STRAGGLERS,
    COMMANDS,
    SLOTS,
    WRITES,
    BYTES,
    SIGNALS,
    FIFO_DEPTH,
    INFLIGHT,
    JOINED,
    MENDED,
    REPLAYED,
    MOVED,
    GROUP_SESSIONS,
    MASKED_RANKS,
    EPOCHS,
    REFUSALS,
)

NAMESPACE = "k8s.namespace.name"
GROUP = "epfabric.group"
SCOPE = "epfabric.scope"
PHASE = "epfabric.phase"
RANK = "epfabric.rank"
PEER = "epfabric.peer"
TRANSPORT = "epfabric.transport"
OP = "epfabric.op"
RESULT = "epfabric.result"
REASON = "epfabric.reason"

GroupName = tuple[str, str]
"""Namespace and name."""
Attributes = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Reading:
    """One number or histogram of one session or epoch (its `origin`), as of the snapshot."""

    metric: MetricInfo
    group: GroupName
    attributes: Attributes
    """Without the group's own."""
    origin: tuple[str, int]
    value: int | Histogram


def readings(snapshot: Snapshot) -> Iterator[Reading]:
    """Everything that the snapshot says about groups."""
    for session in snapshot.sessions:
        yield from _of_session(session)
    for barrier in snapshot.barriers:
        yield from _of_barrier(barrier)
    for group in snapshot.groups:
        yield from _of_group(group)


def _of_session(session: SessionSample) -> Iterator[Reading]:
    def read(metric: MetricInfo, value: int, *attributes: tuple[str, str]) -> Reading:
        origin = ("session", session.handle)
        return Reading(metric, (session.namespace, session.group), attributes, origin, value)

    for op, count in session.completed.items():
        yield read(COMMANDS, count, (RESULT, "completed"), (OP, op))
    for reason, count in session.refused.items():
        yield read(COMMANDS, count, (RESULT, "refused"), (REASON, reason))
    # Every op that runs takes one slot, but for a CAS.
    slots = sum(session.completed.values()) + session.completed.get("cas", 0)
    yield read(SLOTS, slots, (RESULT, "completed"))
    for reason, count in session.refused_slots.items():
        yield read(SLOTS, count, (RESULT, "refused"), (REASON, reason))
    if session.masked:
        yield read(COMMANDS, session.masked, (RESULT, "masked"))
        yield read(SLOTS, session.masked_slots, (RESULT, "masked"))
    for peer in session.peers:
        route = ((PEER, peer.node), (TRANSPORT, peer.transport))
        yield read(WRITES, peer.writes, *route)
        yield read(BYTES, peer.bytes, *route)
        yield read(SIGNALS, peer.signals, *route)
    yield read(FIFO_DEPTH, session.fifo_depth, (RANK, str(session.rank)))
    yield read(INFLIGHT, session.inflight, (RANK, str(session.rank)))
    yield read(JOINED, session.joined)
    yield read(MENDED, session.mended)
    yield read(REPLAYED, session.replayed)
    yield read(MOVED, session.moved)
    yield read(GROUP_SESSIONS, 1)


def _of_barrier(barrier: BarrierSample) -> Iterator[Reading]:
    group, origin = (barrier.namespace, barrier.group), ("epoch", barrier.handle)
    for scope, phases in (("full", barrier.phases), ("rail", barrier.rails)):
        for phase, histogram in phases.items():
            attributes = ((SCOPE, scope), (PHASE, phase))
            yield Reading(BARRIER_DURATION, group, attributes, origin, histogram)
    for rank, count in barrier.stragglers.items():
        yield Reading(STRAGGLERS, group, ((RANK, str(rank)),), origin, count)
    if barrier.masked is not None:
        yield Reading(MASKED_RANKS, group, (), origin, barrier.masked)


def _of_group(sample: GroupSample) -> Iterator[Reading]:
    group, origin = (sample.namespace, sample.group), ("group", sample.handle)
    for result, count in sample.epochs.items():
        yield Reading(EPOCHS, group, ((RESULT, result),), origin, count)
    for code, count in sample.refusals.items():
        yield Reading(REFUSALS, group, ((REASON, code),), origin, count)
