"""Random input for the targets in Python: bytes that are changed here and there, messages of any
values. One seed an execution, so that each can be had again by itself.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

M = TypeVar("M", bound=Message)
SEED = int(os.environ.get("EPFABRIC_SEED", 0)) or random.SystemRandom().getrandbits(48)
TIMES = float(os.environ.get("EPFABRIC_FUZZ_TIMES", 1))
_NUMBERS = [0, 1, 2, 3, 7, 63, 4095, 4096, 4097, 1 << 31, (1 << 32) - 1, 1 << 53, (1 << 64) - 1]
_TEXTS = ["", "a", "b", "ns/g", "x" * 600, "\0", "\U0001f600" * 5000, "10.0.0.2:7000"]
_BITS = {FieldDescriptor.TYPE_UINT32: 32, FieldDescriptor.TYPE_UINT64: 64}
_TOKENS = [b"[" * 900, b"]" * 900, b'{"a":', b"}", b"-1", b"1e999", b"NaN", b"9" * 4400, b"null",
           b"true", b'"\\ud800"', b'""', b",", b"\xff\xfe", b"\0"]  # fmt: skip


def seeds(count: int) -> range:
    """Of so many executions, or of as many times that as EPFABRIC_FUZZ_TIMES says."""
    return range(SEED, SEED + max(1, int(count * TIMES)))


def say(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """What a target has done is shown also where it passes."""
    with capsys.disabled():
        print(f"\n{text} (EPFABRIC_SEED={SEED})")


def changed(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """`data` with a few changes; some are pieces of `others`, or what a parser stumbles over."""
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
        end = min(end, at + rng.choice((1, 4, 64)))
        other = rng.choice(others)
        piece = other[rng.randrange(len(other) + 1) :][: rng.choice((1, 8, 64))]
        put = rng.choice((b"", rng.randbytes(1), data[at:end] * 2, piece, rng.choice(_TOKENS)))
        data = data[:at] + put + data[end:]
    return data


def filled(
    rng: random.Random, into: Message, likely: Mapping[str, Callable[[], Any]] | None = None
) -> None:
    """Sets fields of a protobuf message, one of each oneof: mostly to what is likely for the name,
    else to anything that the type holds."""
    likely = likely or {}
    kinds = into.DESCRIPTOR.oneofs_by_name.get("kind")
    fields: list[Any] = list(into.DESCRIPTOR.fields)
    if kinds is not None:
        fields = [rng.choice(list(kinds.fields))]
    for field in fields:
        if field.message_type is not None and not field.is_repeated:
            getattr(into, field.name).SetInParent()
            filled(rng, getattr(into, field.name), likely)
        elif field.message_type is not None:
            for _ in range(rng.choice((0, 1, 2, 2, 3))):
                filled(rng, getattr(into, field.name).add(), likely)
        elif rng.random() < 0.8 and field.name in likely:
            _set(into, field, likely[field.name]())
        elif rng.random() < 0.9:
            count = rng.choice((0, 1, 2, 300))
            _set(into, field, [_any(rng, field) for _ in range(count)]
                 if field.is_repeated else _any(rng, field))  # fmt: skip


def _set(into: Message, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        getattr(into, field.name).extend(value)
    else:
        setattr(into, field.name, value)


def _any(rng: random.Random, field: FieldDescriptor) -> Any:
    if field.type in _BITS:
        number = rng.choice(_NUMBERS) if rng.random() < 0.9 else rng.getrandbits(64)
        return number % (1 << _BITS[field.type])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    text = rng.choice(_TEXTS)
    return text if field.type == FieldDescriptor.TYPE_STRING else text.encode() * 5


def received(rng: random.Random, message: M) -> M | None:
    """As another agent gets it, some with changed bytes; None where these are no message."""
    data = message.SerializeToString()
    if rng.random() < 0.1:
        data = changed(rng, data, [data])
    made = type(message)()
    try:
        made.ParseFromString(data)
    except DecodeError:
        return None
    return made
