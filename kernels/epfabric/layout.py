"""Python mirror of include/epfabric/layout.h: where everything lies in a session's two segments.

Used by the agent's Python part, tests and diagnostics; the compiled layout is compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from epfabric.limits import (
    MAX_DEPTH,
    MAX_RINGS,
    MAX_SIGNALS,
    MAX_WORLD,
    MIN_DEPTH,
)

SEGMENT_ALIGN = 65536
HEADER_BYTES = 4096
SLOT_BYTES = 16
RING_COUNTERS_BYTES = 128
MASK_BYTES = MAX_WORLD // 8
WORD_BYTES = 8
ATOMIC_RESULT_BYTES = 16  # old value, then ticket + 1

POD_MAGIC = int.from_bytes(b"EPFCPOD1", "little")
AGENT_MAGIC = int.from_bytes(b"EPFCGNT1", "little")

# Inside the headers: the words that are read by both sides.
POD_ABORT = 64
AGENT_ABORT = 64
AGENT_HEARTBEAT = 128
AGENT_EPOCH = 192

# Inside one ring's counters.
RING_TAIL = 0
RING_COMPLETED = 64
RING_REFUSED = 72
RING_REFUSED_TICKET = 80
RING_REFUSED_REASON = 88
RING_MASKED = 96


@dataclass(frozen=True)
class Layout:
    """Byte offsets and sizes; the fields of the C++ struct of the same name."""

    slots: int
    pod_bytes: int
    counters: int
    mask: int
    results: int
    signals: int
    agent_bytes: int


def layout_of(rings: int, depth: int, signals: int, world: int) -> Layout:
    """The layout of a session; ValueError where layout_valid() of the header says no."""
    _check("rings", rings, 1, MAX_RINGS)
    _check("depth", depth, MIN_DEPTH, MAX_DEPTH)
    _check("signals", signals, 1, MAX_SIGNALS)
    _check("world", world, 1, MAX_WORLD)
    if depth & (depth - 1):
        raise ValueError(f"depth is {depth}; choose a power of two")
    slots = HEADER_BYTES
    counters = HEADER_BYTES
    mask = counters + rings * RING_COUNTERS_BYTES
    results = _round_up(mask + MASK_BYTES, HEADER_BYTES)
    signal_words = _round_up(results + rings * depth * ATOMIC_RESULT_BYTES, HEADER_BYTES)
    end = signal_words + world * rings * signals * WORD_BYTES
    return Layout(
        slots=slots,
        pod_bytes=_round_up(slots + rings * depth * SLOT_BYTES, SEGMENT_ALIGN),
        counters=counters,
        mask=mask,
        results=results,
        signals=signal_words,
        agent_bytes=_round_up(end, SEGMENT_ALIGN),
    )


def _round_up(value: int, align: int) -> int:
    return -(-value // align) * align


def _check(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; choose {low} to {high}")
