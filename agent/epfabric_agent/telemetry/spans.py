"""Turns a kept barrier into this node's spans of its trace; pure, called by traces.

All ids follow from the trace's, so that the spans of all agents fit together without a word between
them, and sending a barrier twice makes nothing new.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from epfabric_agent.telemetry.readings import GROUP, NAMESPACE, PHASE
from epfabric_agent.telemetry.snapshot import PHASES

if TYPE_CHECKING:
    from epfabric_agent._native import BarrierTimes

EPOCH = "epfabric.epoch"
BARRIER = "epfabric.barrier"
LAST_RANK = "epfabric.last_rank"
NODE = "k8s.node.name"
ROOT_SPAN = "barrier"
NODE_SPAN = "barrier.node"
PARTS = PHASES[:-1]
_SCOPE = InstrumentationScope("epfabric_agent")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)

Value = str | int


@dataclass(frozen=True)
class KeptBarrier:
    """What one node knows of a barrier; times are unix nanoseconds."""

    namespace: str
    group: str
    trace_id: bytes
    epoch: int
    number: int
    leads: bool
    """The node is the leader's: it has the trace's root."""
    last_rank: int
    """The group's on the leader's node, or (`alone`) this node's; -1 where it is gone."""
    began_ns: int
    ends_ns: tuple[int, ...]
    """Of the node's first rank to arrive, then of each of PARTS."""
    alone: bool = False
    """Nobody collects: each node knows its own last rank only."""


def from_core(times: BarrierTimes, namespace: str, group: str) -> KeptBarrier:
    stamps = (
        times["first_ns"],
        times["entered_ns"],
        times["posted_ns"],
        times["network_ns"],
        times["left_ns"],
    )
    # Stamps of two threads may be a moment out of order.
    ordered = tuple(itertools.accumulate(stamps, max))
    return KeptBarrier(
        namespace=namespace,
        group=group,
        trace_id=times["trace_id"],
        epoch=times["epoch"],
        number=times["number"],
        leads=times["leads"],
        last_rank=times["last_rank"],
        began_ns=min(times["began_ns"], ordered[0]),
        ends_ns=ordered,
        alone=times["alone"],
    )


def span_id(trace_id: bytes, *path: str) -> int:
    """The same at every agent; never 0. No path: the root's."""
    text = "/".join((trace_id.hex(), *path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) or 1


def spans_of(barrier: KeptBarrier, node: str, resource: Resource) -> list[ReadableSpan]:
    """The node's span with its phases, under the root; on the leader's node the root too."""

    def span(
        name: str, path: tuple[str, ...], start_ns: int, end_ns: int, more: Mapping[str, Value]
    ) -> ReadableSpan:
        return ReadableSpan(
            name=name,
            context=_context(barrier.trace_id, path),
            parent=_context(barrier.trace_id, path[:-1]) if path else None,
            resource=resource,
            attributes={**about, **more},
            instrumentation_scope=_SCOPE,
            start_time=start_ns,
            end_time=end_ns,
        )

    about: dict[str, Value] = {
        NAMESPACE: barrier.namespace,
        GROUP: barrier.group,
        EPOCH: barrier.epoch,
        BARRIER: barrier.number,
        NODE: node,
    }
    ends = barrier.ends_ns
    last = {LAST_RANK: barrier.last_rank} if barrier.last_rank >= 0 else {}
    spans = [span(NODE_SPAN, (node,), ends[0], ends[-1], last if barrier.alone else {})]
    for phase, (start_ns, end_ns) in zip(PARTS, itertools.pairwise(ends), strict=True):
        spans.append(span(f"barrier.{phase}", (node, phase), start_ns, end_ns, {PHASE: phase}))
    if barrier.leads:
        spans.append(span(ROOT_SPAN, (), barrier.began_ns, ends[-1], {} if barrier.alone else last))
    return spans


def _context(trace_id: bytes, path: tuple[str, ...]) -> SpanContext:
    return SpanContext(int.from_bytes(trace_id), span_id(trace_id, *path), False, _SAMPLED)
