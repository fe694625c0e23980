"""The compiled ABI and its Python mirror agree: layout, limits, packing, lap bits."""

import dataclasses
import importlib
import itertools
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
from epfabric import command, layout, limits
from epfabric.command import Op, Refusal, Write
from epfabric.layout import layout_of
from epfabric_host import _producer

SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(1 << 32))
INCLUDE = Path(__file__).resolve().parents[2] / "kernels/epfabric/include/epfabric"
LIMITS = {
    "rank": limits.MAX_WORLD - 1,
    "source": (1 << 32) - 1,
    "destination": (1 << 32) - 1,
    "units": command.MAX_UNITS,
    "signal": limits.MAX_SIGNALS - 1,
    "advance": limits.MAX_ADVANCE,
}


@pytest.fixture
def dice() -> random.Random:
    print(f"seed {SEED}")
    return random.Random(SEED)


def compiled(write: Write) -> tuple[int, int] | None:
    return _producer.pack_write(
        write.rank, write.source, write.destination, write.units, write.signal, write.advance
    )


def mirrored(write: Write) -> tuple[int, int] | None:
    try:
        return command.pack_write(write)
    except ValueError:
        return None


@pytest.mark.parametrize("module", ["epfabric_host._producer", "epfabric_agent._native"])
def test_compiled_layouts_equal_the_mirror(module: str, dice: random.Random) -> None:
    native = importlib.import_module(module)
    cases = [(1, 16, 1, 1), (64, 65536, 2048, 4096), (32, 1024, 16, 1024), (1, 16, 1, 4096)]
    for _ in range(2000):
        world = 1 << dice.randrange(13) if dice.random() < 0.5 else dice.randint(1, 4096)
        depth = 1 << dice.randint(4, 16)
        cases.append((dice.randint(1, 64), depth, dice.randint(1, 2048), world))
    for rings, depth, signals, world in cases:
        mirror = dataclasses.asdict(layout_of(rings, depth, signals, world))
        compiled_layout = native.layout(rings, depth, signals, world)
        assert mirror.items() <= compiled_layout.items(), (rings, depth, signals, world)


def test_named_words_lie_where_the_mirror_says() -> None:
    for name, offset in _producer.offsets().items():
        assert getattr(layout, name.upper()) == offset, name


def test_nothing_of_a_layout_overlaps(dice: random.Random) -> None:
    for _ in range(500):
        rings, depth = dice.randint(1, 64), 1 << dice.randint(4, 16)
        signals, world = dice.randint(1, 2048), dice.randint(1, 4096)
        at = layout_of(rings, depth, signals, world)
        parts = [
            (0, 256),
            (at.counters, rings * 128),
            (at.mask, 512),
            (at.results, rings * depth * 16),
            (at.signals, world * rings * signals * 8),
            (at.agent_bytes, 0),
        ]
        for (start, size), (following, _) in itertools.pairwise(parts):
            assert start + size <= following, (rings, depth, signals, world)
        assert at.slots + rings * depth * 16 <= at.pod_bytes


@pytest.mark.parametrize(
    "geometry",
    [(0, 16, 1, 1), (65, 16, 1, 1), (1, 8, 1, 1), (1, 48, 1, 1), (1, 1 << 17, 1, 1),
     (1, 16, 0, 1), (1, 16, 2049, 1), (1, 16, 1, 0), (1, 16, 1, 4097)],
)  # fmt: skip
def test_both_refuse_a_geometry_outside_the_limits(geometry: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"choose|limits"):
        layout_of(*geometry)
    with pytest.raises(ValueError, match="limits"):
        _producer.layout(*geometry)


@pytest.mark.parametrize("field", LIMITS)
def test_each_field_at_its_limit_fits_and_one_more_is_refused(field: str) -> None:
    low = Write(rank=0, source=0, destination=0, units=1, signal=0, advance=1)
    full = dataclasses.replace(low, **{field: LIMITS[field]})
    pair = command.pack_write(full)
    assert compiled(full) == pair
    assert command.unpack_write(pair) == full
    assert _producer.unpack_write(*pair) == dataclasses.astuple(full)
    over = dataclasses.replace(low, **{field: LIMITS[field] + 1})
    with pytest.raises(ValueError, match=field):
        command.pack_write(over)
    if LIMITS[field] + 1 < 1 << 32:
        assert compiled(over) is None
    else:
        with pytest.raises(TypeError):
            compiled(over)


def test_zero_bytes_and_a_signal_that_does_not_grow_are_refused() -> None:
    low = Write(rank=0, source=0, destination=0, units=1)
    for bad in (dataclasses.replace(low, units=0), dataclasses.replace(low, signal=1)):
        assert compiled(bad) is None
        assert mirrored(bad) is None
    assert _producer.pack_signal(0, 0, 0) is None


def test_fields_touch_only_their_own_bits() -> None:
    base = Write(rank=0, source=0, destination=0, units=1, signal=0, advance=1)
    first, second = command.pack_write(base)
    seen = [0, 0]
    for field, high in LIMITS.items():
        pair = command.pack_write(dataclasses.replace(base, **{field: high}))
        changed = [pair[0] ^ first, pair[1] ^ second]
        assert bool(changed[0]) != bool(changed[1]), f"{field} lies in both halves"
        overlap = changed[0] & seen[0] | changed[1] & seen[1]
        assert not overlap, f"{field} overlaps another"
        assert not ((changed[0] | changed[1]) & command.LAP_BIT), f"{field} covers the lap bit"
        seen = [seen[0] | changed[0], seen[1] | changed[1]]


def test_random_writes_pack_alike_and_come_back(dice: random.Random) -> None:
    writes = []
    for _ in range(3000):
        fields = {name: dice.randint(0, high + 1 if high < 1 << 31 else high)
                  for name, high in LIMITS.items()}  # fmt: skip
        write = Write(**fields)
        pair = mirrored(write)
        assert compiled(write) == pair, write
        if pair is not None:
            assert command.unpack_write(pair) == write
            assert _producer.unpack_write(*pair) == dataclasses.astuple(write)
            writes.append(write)
    columns = np.array([dataclasses.astuple(w) for w in writes]).T
    packed = command.pack_writes(*columns)
    assert [tuple(map(int, p)) for p in packed] == [command.pack_write(w) for w in writes]


def test_other_commands_pack_alike(dice: random.Random) -> None:
    assert _producer.pack_barrier() == command.pack_barrier()
    assert _producer.pack_barrier(True) == command.pack_barrier(rail=True)
    for _ in range(1000):
        rank, signal, advance = dice.randrange(4097), dice.randrange(2049), dice.randrange(32769)
        try:
            expected = command.pack_signal(rank, signal, advance)
        except ValueError:
            expected = None
        assert _producer.pack_signal(rank, signal, advance) == expected
        until = dice.randrange(1 << 64)
        assert _producer.pack_drain(until) == command.pack_drain(until)
        op = dice.choice([Op.ADD, Op.CAS, Op.CAS_SWAP])
        place = (0, 0) if op is Op.CAS_SWAP else (dice.randrange(4096), dice.randrange(1 << 33))
        operand = dice.randrange(1 << 64)
        atomic = command.pack_atomic(op, *place, operand)
        assert _producer.pack_atomic(op, *place, operand) == atomic
        assert command.op_of(atomic) is op
        assert not (atomic[0] | atomic[1]) & command.LAP_BIT
        assert (atomic[0] >> 33 & 1) << 63 | atomic[1] == operand


def test_atomics_refuse_what_does_not_fit() -> None:
    for op, rank, offset in ((3, 4096, 0), (4, 0, 1 << 33), (7, 1, 0), (7, 0, 1), (1, 0, 0)):
        assert _producer.pack_atomic(op, rank, offset, 0) is None
        with pytest.raises(ValueError, match=r"rank|offset|op"):
            command.pack_atomic(Op(op), rank, offset, 0)


def test_lists_of_writes_name_the_field_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="units"):
        command.pack_writes(0, 0, 0, [1, 0, 2])
    with pytest.raises(ValueError, match="rank"):
        command.pack_writes([0, 4096], 0, 0, 1)
    with pytest.raises(ValueError, match="source"):
        command.pack_writes(0, -1, 0, 1)
    with pytest.raises(ValueError, match="destination"):
        command.pack_writes(0, 0, [0.5], 1)
    with pytest.raises(ValueError, match="advance"):
        command.pack_writes(0, 0, 0, 1, signal=[0, 3])


def test_the_lap_bit_turns_every_lap_and_starts_set() -> None:
    for depth in (16, 1024):
        for ticket in (0, depth - 1, depth, 2 * depth - 1, 2 * depth, (1 << 64) - 1):
            expected = (ticket // depth & 1) ^ 1
            assert _producer.lap_of(ticket, depth) == expected << 63


def header_numbers() -> dict[str, int]:
    text = "".join(p.read_text() for p in INCLUDE.glob("*.h"))
    found = re.findall(r"constexpr uint(?:32|64)_t (k\w+) = ([^;]+);", text)
    plain = {n: re.sub(r"uint64_t\{(\d+)\}", r"\1", v) for n, v in found}
    simple = {n: v for n, v in plain.items() if re.fullmatch(r"[\d\s()<\-u]+", v)}
    return {n: eval(v.replace("u", "")) for n, v in simple.items()}


def test_limits_are_those_of_the_headers() -> None:
    numbers = header_numbers()
    assert {
        "kAbiVersion": limits.ABI_VERSION,
        "kMaxRanks": limits.MAX_WORLD,
        "kMaxRings": limits.MAX_RINGS,
        "kMinDepth": limits.MIN_DEPTH,
        "kMaxDepth": limits.MAX_DEPTH,
        "kMaxBatch": limits.MAX_BATCH,
        "kMaxSignals": limits.MAX_SIGNALS,
        "kMaxAdvance": limits.MAX_ADVANCE,
        "kUnitBytes": limits.OFFSET_UNIT,
        "kMaxUnits": command.MAX_UNITS,
        "kMaxRankBytes": limits.REGION_SPACE_BYTES,
    }.items() <= numbers.items()


def test_refusals_have_the_words_of_the_header() -> None:
    text = (INCLUDE / "command.h").read_text()
    body = re.search(r"enum class Refusal[^{]*{(.*?)};", text, re.S)
    assert body is not None
    words = re.findall(r"^\s*k(\w+)", body.group(1), re.M)
    named = [re.sub(r"(?<!^)([A-Z])", r"_\1", w).upper() for w in words]
    assert named == [*(r.name for r in Refusal), "COUNT"]
