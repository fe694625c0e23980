"""Python mirror of include/epfabric/command.h: 16-byte commands as pairs of 64-bit halves.

Used to build lists of commands for Ring.push() (benches, tests of an agent's checks) and to read
them back. Units, offsets and lengths are those of the wire: bytes become units at the callers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfabric.limits import MAX_ADVANCE, MAX_SIGNALS, MAX_WORLD, MAX_WRITE_BYTES, OFFSET_UNIT

LAP_BIT = 1 << 63
MAX_UNITS = MAX_WRITE_BYTES // OFFSET_UNIT
_MAX_OFFSET = (1 << 32) - 1
_MAX_ATOMIC_OFFSET = (1 << 33) - 1
_WORD = (1 << 64) - 1


class Op(enum.IntEnum):
    """What a command asks for."""

    INVALID = 0
    WRITE = 1
    SIGNAL = 2
    ADD = 3
    CAS = 4
    DRAIN = 5
    BARRIER = 6
    CAS_SWAP = 7


class Refusal(enum.IntEnum):
    """Why the agent refused a command; the words of the C++ enum of the same name."""

    NONE = 0
    BAD_OP = 1
    RESERVED_FLAG = 2
    UNUSED_FIELD = 3
    RANK_OUT_OF_GROUP = 4
    RANK_LEFT = 5
    SOURCE_OUT_OF_REGION = 6
    DESTINATION_OUT_OF_REGION = 7
    SIGNAL_OUT_OF_RANGE = 8
    NO_ADVANCE = 9
    BAD_DRAIN = 10
    HALF_CAS = 11
    UNSUPPORTED = 12

    @property
    def text(self) -> str:
        """The reason as metrics and errors name it."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, kw_only=True)
class Write:
    """The fields of a WRITE, or of a SIGNAL (then units is 1 and means nothing)."""

    rank: int
    source: int
    destination: int
    units: int
    signal: int = 0
    advance: int = 0


Pair = tuple[int, int]


def pack_write(write: Write) -> Pair:
    """Both halves of a WRITE; ValueError names the field that does not fit."""
    _fits("rank", write.rank, 0, MAX_WORLD - 1)
    _fits("source", write.source, 0, _MAX_OFFSET)
    _fits("destination", write.destination, 0, _MAX_OFFSET)
    _fits("units", write.units, 1, MAX_UNITS)
    _fits("signal", write.signal, 0, MAX_SIGNALS - 1)
    _fits("advance", write.advance, 0, MAX_ADVANCE)
    if write.advance == 0 and write.signal:
        raise ValueError("signal is set but advance is 0: a signal word must grow")
    first = _head(Op.WRITE, write.rank) | write.advance << 32 | write.source
    return first, write.signal << 52 | (write.units - 1) << 32 | write.destination


def pack_signal(rank: int, signal: int, advance: int) -> Pair:
    """Both halves of a SIGNAL; ValueError names the field that does not fit."""
    _fits("rank", rank, 0, MAX_WORLD - 1)
    _fits("signal", signal, 0, MAX_SIGNALS - 1)
    _fits("advance", advance, 1, MAX_ADVANCE)
    return _head(Op.SIGNAL, rank) | advance << 32, signal << 52


def pack_drain(until: int) -> Pair:
    """A DRAIN of all commands of its ring whose ticket is below until."""
    return _head(Op.DRAIN, 0) | (until & _MAX_OFFSET), 0


def pack_barrier(rail: bool = False) -> Pair:
    """A BARRIER, of all ranks or along the rail; it needs a DRAIN of every ring before it."""
    return _head(Op.BARRIER, int(rail)), 0


def pack_atomic(op: Op, rank: int, offset: int, operand: int) -> Pair:
    """One slot of an ATOMIC; offset in units of 8 bytes, operand any 64 bits."""
    if op not in (Op.ADD, Op.CAS, Op.CAS_SWAP):
        raise ValueError(f"{op!r} is not an atomic op")
    _fits("rank", rank, 0, MAX_WORLD - 1)
    _fits("offset", offset, 0, _MAX_ATOMIC_OFFSET)
    _fits("operand", operand, 0, _WORD)
    if op is Op.CAS_SWAP and (rank or offset):
        raise ValueError("CAS_SWAP carries only an operand: rank and offset stand in the CAS")
    return _head(op, rank) | (operand >> 63) << 33 | offset, operand & (LAP_BIT - 1)


def unpack_write(pair: Pair) -> Write:
    """The fields of a WRITE or SIGNAL."""
    first, second = pair
    return Write(
        rank=first >> 47 & (MAX_WORLD - 1),
        source=first & _MAX_OFFSET,
        destination=second & _MAX_OFFSET,
        units=(second >> 32 & (MAX_UNITS - 1)) + 1,
        signal=second >> 52 & (MAX_SIGNALS - 1),
        advance=first >> 32 & MAX_ADVANCE,
    )


def op_of(pair: Pair) -> Op:
    """The op of a command."""
    return Op(pair[0] >> 60 & 7)


def pack_writes(
    rank: ArrayLike,
    source: ArrayLike,
    destination: ArrayLike,
    units: ArrayLike,
    signal: ArrayLike = 0,
    advance: ArrayLike = 0,
) -> NDArray[np.uint64]:
    """Many WRITEs at once: arguments broadcast to (n,), the result is (n, 2) for Ring.push()."""
    fields = np.broadcast_arrays(
        *(np.atleast_1d(np.asarray(f)) for f in (rank, source, destination, units, signal, advance))
    )
    names = ("rank", "source", "destination", "units", "signal", "advance")
    highest = (MAX_WORLD - 1, _MAX_OFFSET, _MAX_OFFSET, MAX_UNITS, MAX_SIGNALS - 1, MAX_ADVANCE)
    for name, field, high in zip(names, fields, highest, strict=True):
        if not np.issubdtype(field.dtype, np.integer):
            raise ValueError(f"{name} must hold integers, not {field.dtype}")
        if field.size:
            _fits(name, int(field.min()), 1 if name == "units" else 0, high)
            _fits(name, int(field.max()), 0, high)
    r, s, d, u, word, step = (f.astype(np.uint64) for f in fields)
    if ((step == 0) & (word != 0)).any():
        raise ValueError("signal is set but advance is 0: a signal word must grow")
    pairs = np.empty((*r.shape, 2), np.uint64)
    shift = [np.uint64(n) for n in (60, 47, 32, 52)]
    pairs[..., 0] = (np.uint64(Op.WRITE) << shift[0]) | (r << shift[1]) | (step << shift[2]) | s
    pairs[..., 1] = (word << shift[3]) | ((u - np.uint64(1)) << shift[2]) | d
    return pairs


def _head(op: Op, rank: int) -> int:
    return int(op) << 60 | rank << 47


def _fits(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; a command holds {low} to {high}")
