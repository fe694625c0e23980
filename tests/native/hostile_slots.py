"""Slots of a hostile pod, and what an agent must make of each: the model that tests compare with.

A stream is uniformly random, valid WRITEs with one field redrawn, every second time within its
legal range, and atomics on the first words of the regions, of which every fourth has a bit flipped.
BARRIERs are redrawn: they are a case of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from epfabric import command
from epfabric.command import Op, Refusal
from epfabric.limits import ATOMIC_WORD, MAX_ADVANCE, MAX_SIGNALS, MAX_WORLD, OFFSET_UNIT
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
    random = rng.integers(0, 1 << 63, (count // 8 * 3, 2), dtype=np.uint64)
    pairs = atomics(rng, count // 16, target)
    slots = np.concatenate([random, redrawn(rng, count - len(random) - len(pairs), target)])
    rng.shuffle(slots)
    # Slots two by two keep a CAS whole.
    slots = rng.permutation(np.concatenate([slots, pairs]).reshape(-1, 2, 2)).reshape(-1, 2)
    while (barriers := ops(slots) == Op.BARRIER).any():
        slots[barriers, 0] = rng.integers(0, 1 << 63, barriers.sum(), dtype=np.uint64)
    if ops(slots)[-1] == Op.CAS:
        slots[-1] = 0
    return slots


def atomics(rng: np.random.Generator, pairs: int, target: Target) -> Slots:
    """Pairs of slots: two ADDs or a CAS, whose words others hit too."""
    u = np.uint64
    begins, ends = np.array(target.regions, np.uint64).T // u(ATOMIC_WORD)
    region = rng.integers(0, len(begins), (pairs, 2))
    word = begins[region] + rng.integers(0, 64, (pairs, 2), dtype=u)
    word = np.where(rng.random((pairs, 2)) < 1 / 16, ends[region], word)
    rank = rng.integers(0, target.world, (pairs, 2), dtype=u)
    operand = rng.integers(0, 1 << 64, (pairs, 2), dtype=u)
    cas = rng.random(pairs) < 0.5
    op = np.where(cas[:, None], [[Op.CAS, Op.CAS_SWAP]], [[Op.ADD, Op.ADD]]).astype(u)
    swap = op == Op.CAS_SWAP
    lo = op << u(60) | np.where(swap, u(0), rank << u(47) | word) | (operand >> u(63)) << u(33)
    slots = np.stack([lo, operand & u((1 << 63) - 1)], axis=2).reshape(-1, 2)
    flipped = rng.random(len(slots)) < 1 / 4
    slots[flipped, 0] ^= u(1) << rng.integers(0, 60, flipped.sum(), dtype=u)
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
        "word": bits(lo, 0, 33), "no_atomic": bits(lo, 34, 47),
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
    atomic = (op == Op.ADD) | pair
    to_rank = write | signal | atomic
    flag = (f["flag"] == 1) | pair & (np.roll(f["flag"], -1) == 1)
    of_swap = f["rank"] | f["word"] | f["no_atomic"]
    unused = write & (f["advance"] == 0) & (f["signal"] != 0)
    unused |= signal & ((f["source"] != 0) | (f["destination"] != 0) | (f["units"] != 1))
    unused |= drain & ((f["rank"] != 0) | (f["advance"] != 0) | (slots[:, 1] != 0))
    unused |= atomic & (f["no_atomic"] != 0) | pair & (np.roll(of_swap, -1) != 0)
    word_begin = f["word"] * ATOMIC_WORD // OFFSET_UNIT
    ticket = np.arange(len(slots))
    # In the order in which the agent looks; the first that applies stands.
    rules = (
        ((op == Op.CAS) & ~pair, Refusal.HALF_CAS),
        (op == Op.INVALID, Refusal.BAD_OP),
        (flag, Refusal.RESERVED_FLAG),
        (to_rank & (f["rank"] >= target.world), Refusal.RANK_OUT_OF_GROUP),
        (unused, Refusal.UNUSED_FIELD),
        (signal & (f["advance"] == 0), Refusal.NO_ADVANCE),
        ((write | signal) & (f["signal"] >= target.signals), Refusal.SIGNAL_OUT_OF_RANGE),
        (write & ~inside(f["source"], f["units"], target), Refusal.SOURCE_OUT_OF_REGION),
        (write & ~inside(f["destination"], f["units"], target), Refusal.DESTINATION_OUT_OF_REGION),
        (atomic & ~inside(word_begin, none + 1, target), Refusal.DESTINATION_OUT_OF_REGION),
        (drain & (f["source"] > ticket), Refusal.BAD_DRAIN),
        (op == Op.CAS_SWAP, Refusal.HALF_CAS),
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
    to = accepted & (f["rank"] == rank)
    rows = to & (f["op"] == Op.WRITE)
    edges = np.zeros(size // OFFSET_UNIT + 1, np.int64)
    np.add.at(edges, f["destination"][rows], 1)
    np.add.at(edges, f["destination"][rows] + f["units"][rows], -1)
    out = np.repeat(np.cumsum(edges)[:-1] > 0, OFFSET_UNIT)
    words = f["word"][to & np.isin(f["op"], (Op.ADD, Op.CAS))]
    out.reshape(-1, ATOMIC_WORD)[words] = True
    return out


def answered(slots: Slots, accepted: Flags) -> NDArray[np.uint64]:
    """Tickets of the atomics that ran."""
    f = unpack(slots)
    return np.flatnonzero(accepted & np.isin(f["op"], (Op.ADD, Op.CAS))).astype(np.uint64)


def signal_words(slots: Slots, accepted: Flags, rank: int, signals: int) -> Array:
    """What the words of these commands' (rank, ring) hold at a destination rank afterwards."""
    f = unpack(slots)
    rows = accepted & np.isin(f["op"], (Op.WRITE, Op.SIGNAL)) & (f["rank"] == rank)
    words = np.zeros(signals, np.int64)
    np.add.at(words, f["signal"][rows], f["advance"][rows])
    return words
