"""Slots of a hostile pod, and what an agent must make of each: the model that tests compare with.

A stream is half uniformly random and half valid WRITEs with one field redrawn, every second time
within its legal range. BARRIERs are redrawn: they are a case of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from epfabric import command
from epfabric.command import Op, Refusal
from epfabric.limits import MAX_ADVANCE, MAX_SIGNALS, MAX_WORLD, OFFSET_UNIT
from numpy.typing import NDArray

Array = NDArray[np.int64]
Slots = NDArray[np.uint64]
Flags = NDArray[np.bool_]
FIELDS = ("op", "flag", "rank", "advance", "source", "signal", "units", "destination")
REASONS = tuple(reason.text for reason in Refusal)
_WIDE = 1 << 32


@dataclass(frozen=True)
class Target:
    """What a stream is checked against. Regions: (begin, end) in bytes, the same for each rank."""

    world: int
    signals: int
    regions: tuple[tuple[int, int], ...]

    @property
    def units(self) -> list[tuple[int, int]]:
        return [(begin // OFFSET_UNIT, end // OFFSET_UNIT) for begin, end in self.regions]


def stream(rng: np.random.Generator, count: int, target: Target) -> Slots:
    """`count` slots (even), without lap bits; the last one waits for no other."""
    random = rng.integers(0, 1 << 63, (count // 2, 2), dtype=np.uint64)
    slots = np.concatenate([random, redrawn(rng, count - count // 2, target)])
    rng.shuffle(slots)
    while (barriers := ops(slots) == Op.BARRIER).any():
        slots[barriers, 0] = rng.integers(0, 1 << 63, barriers.sum(), dtype=np.uint64)
    if ops(slots)[-1] == Op.CAS:
        slots[-1] = 0
    return slots


def redrawn(rng: np.random.Generator, count: int, target: Target) -> Slots:
    """WRITEs that would be accepted, but for one field that is drawn anew."""
    fields, room = legal_writes(rng, count, target)
    chosen = rng.integers(0, len(FIELDS), count)
    for index, name in enumerate(FIELDS):
        rows = np.flatnonzero(chosen == index)
        legal, wild = rows[::2], rows[1::2]
        fields[name][legal] = legal_values(rng, name, legal, fields, room, target)
        fields[name][wild] = wild_values(rng, name, wild.size)
    return pack(fields)


def legal_writes(
    rng: np.random.Generator, count: int, target: Target
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Fields in units, and where source and destination end at the latest."""
    begins, ends = np.array(target.units).T
    source_region, destination_region = rng.integers(0, len(begins), (2, count))
    units = rng.integers(1, 65, count)
    room = {"source": ends[source_region], "destination": ends[destination_region]}
    fields = {
        "op": np.full(count, int(Op.WRITE)),
        "flag": np.zeros(count, np.int64),
        "rank": rng.integers(0, target.world, count),
        "advance": rng.integers(0, 3, count),
        "source": rng.integers(begins[source_region], room["source"] - units + 1),
        "destination": rng.integers(begins[destination_region], room["destination"] - units + 1),
        "units": units,
    }
    fields["signal"] = rng.integers(0, target.signals, count) * (fields["advance"] > 0)
    return fields, room


def legal_values(
    rng: np.random.Generator,
    name: str,
    rows: Array,
    fields: dict[str, Array],
    room: dict[str, Array],
    target: Target,
) -> Array:
    """New values of one field with which these commands are still accepted."""
    begins, ends = np.array(target.units).T
    values: Array
    units = fields["units"][rows]
    match name:
        case "op" | "flag":
            return fields[name][rows]
        case "rank":
            return rng.integers(0, target.world, rows.size)
        case "advance":
            return rng.integers((fields["signal"][rows] > 0).astype(np.int64), MAX_ADVANCE + 1)
        case "signal":
            values = rng.integers(0, target.signals, rows.size) * (fields["advance"][rows] > 0)
        case "units":
            left = [room[end][rows] - fields[end][rows] for end in ("source", "destination")]
            values = rng.integers(1, np.minimum(*left) + 1)
        case _:
            region = rng.integers(0, len(begins), rows.size)
            values = rng.integers(begins[region], ends[region] - units + 1)
    return values


def wild_values(rng: np.random.Generator, name: str, count: int) -> Array:
    """Values over the field's whole width."""
    widths = {"op": 8, "flag": 2, "rank": MAX_WORLD, "advance": MAX_ADVANCE + 1}
    widths |= {"signal": MAX_SIGNALS, "units": command.MAX_UNITS}
    values = rng.integers(0, widths.get(name, _WIDE), count)
    if name == "op":
        values[values == Op.BARRIER] = int(Op.INVALID)
    return values + 1 if name == "units" else values


def pack(fields: dict[str, Array]) -> Slots:
    f = {name: values.astype(np.uint64) for name, values in fields.items()}
    u = np.uint64
    lo = f["op"] << u(60) | f["flag"] << u(59) | f["rank"] << u(47) | f["advance"] << u(32)
    hi = f["signal"] << u(52) | (f["units"] - u(1)) << u(32)
    return np.stack([lo | f["source"], hi | f["destination"]], axis=1)


def unpack(slots: Slots) -> dict[str, Array]:
    lo, hi = slots[:, 0], slots[:, 1]

    def bits(word: Slots, low: int, high: int) -> Array:
        mask = np.uint64((1 << (high - low)) - 1)
        return ((word >> np.uint64(low)) & mask).astype(np.int64)

    return {
        "op": bits(lo, 60, 63), "flag": bits(lo, 59, 60), "rank": bits(lo, 47, 59),
        "advance": bits(lo, 32, 47), "source": bits(lo, 0, 32), "signal": bits(hi, 52, 63),
        "units": bits(hi, 32, 52) + 1, "destination": bits(hi, 0, 32),
    }  # fmt: skip


def ops(slots: Slots) -> Array:
    return unpack(slots)["op"]


def verdicts(slots: Slots, target: Target) -> Array:
    """The Refusal of each slot of one ring (NONE: it runs); both slots of a CAS share one."""
    f = unpack(slots)
    op, none = f["op"], np.zeros(len(slots), bool)
    pair = none.copy()  # first slot of a whole CAS
    pair[:-1] = (op[:-1] == Op.CAS) & (op[1:] == Op.CAS_SWAP)
    swap = np.roll(pair, 1)
    write, signal, drain = op == Op.WRITE, op == Op.SIGNAL, op == Op.DRAIN
    to_rank = write | signal
    unused = write & (f["advance"] == 0) & (f["signal"] != 0)
    unused |= signal & ((f["source"] != 0) | (f["destination"] != 0) | (f["units"] != 1))
    unused |= drain & ((f["rank"] != 0) | (f["advance"] != 0) | (slots[:, 1] != 0))
    ticket = np.arange(len(slots))
    # In the order in which the agent looks; the first that applies stands.
    rules = (
        ((op == Op.CAS) & ~pair, Refusal.HALF_CAS),
        (op == Op.INVALID, Refusal.BAD_OP),
        (f["flag"] == 1, Refusal.RESERVED_FLAG),
        (to_rank & (f["rank"] >= target.world), Refusal.RANK_OUT_OF_GROUP),
        (unused, Refusal.UNUSED_FIELD),
        (signal & (f["advance"] == 0), Refusal.NO_ADVANCE),
        (to_rank & (f["signal"] >= target.signals), Refusal.SIGNAL_OUT_OF_RANGE),
        (write & ~inside(f["source"], f["units"], target), Refusal.SOURCE_OUT_OF_REGION),
        (write & ~inside(f["destination"], f["units"], target), Refusal.DESTINATION_OUT_OF_REGION),
        (drain & (f["source"] > ticket), Refusal.BAD_DRAIN),
        (op == Op.CAS_SWAP, Refusal.HALF_CAS),
        ((op == Op.ADD) | pair, Refusal.UNSUPPORTED),
    )
    found = np.select([where for where, _ in rules], [int(reason) for _, reason in rules], 0)
    found[swap] = found[pair]
    return found


def inside(begin: Array, units: Array, target: Target) -> Flags:
    within = np.zeros(begin.size, np.bool_)
    for first, last in target.units:
        within |= (begin >= first) & (begin + units <= last)
    return within


def reasons_of(found: Array) -> dict[str, int]:
    """Refused slots by reason, only those that occur."""
    counts = np.bincount(found, minlength=len(REASONS))
    return {REASONS[i]: int(n) for i, n in enumerate(counts) if i and n}


def touched(slots: Slots, accepted: Flags, rank: int, size: int) -> Flags:
    """Which of `size` bytes of a rank's offset space these commands may write."""
    f = unpack(slots)
    rows = accepted & (f["op"] == Op.WRITE) & (f["rank"] == rank)
    edges = np.zeros(size // OFFSET_UNIT + 1, np.int64)
    np.add.at(edges, f["destination"][rows], 1)
    np.add.at(edges, f["destination"][rows] + f["units"][rows], -1)
    return np.repeat(np.cumsum(edges)[:-1] > 0, OFFSET_UNIT)


def signal_words(slots: Slots, accepted: Flags, rank: int, signals: int) -> Array:
    """What the words of these commands' (rank, ring) hold at a destination rank afterwards."""
    f = unpack(slots)
    rows = accepted & np.isin(f["op"], (Op.WRITE, Op.SIGNAL)) & (f["rank"] == rank)
    words = np.zeros(signals, np.int64)
    np.add.at(words, f["signal"][rows], f["advance"][rows])
    return words
