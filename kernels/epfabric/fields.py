"""What the fields of session messages may hold; used by messages.py alone.

Each function here is the default of a dataclass field and carries the check of its values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from epfabric.limits import MAX_DEPTH, MAX_WORLD, MIN_DEPTH, REGION_SPACE_BYTES


class MessageError(ValueError):
    """A packet that is not a valid message; the text says which field and what is allowed."""


Check = Callable[[str, Any], None]


def integer(low: int, high: int, multiple: int = 1) -> Any:
    def check(name: str, value: Any) -> None:
        if type(value) is not int:
            raise MessageError(f"{name} must be an integer, not {type(value).__name__}")
        if not low <= value <= high:
            raise MessageError(f"{name} is {value}; allowed are {low} to {high}")
        if value % multiple:
            raise MessageError(f"{name} is {value}; it must be a multiple of {multiple}")

    return dataclasses.field(metadata={"check": check})


def depth() -> Any:
    def check(name: str, value: Any) -> None:
        if type(value) is not int or not MIN_DEPTH <= value <= MAX_DEPTH or value & (value - 1):
            raise MessageError(
                f"{name} is {value!r}; it must be a power of two in {MIN_DEPTH}..{MAX_DEPTH}"
            )

    return dataclasses.field(metadata={"check": check})


def text(longest: int, *, empty: bool = False) -> Any:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise MessageError(f"{name} must be a string, not {type(value).__name__}")
        if len(value) > longest or not (value or empty):
            raise MessageError(f"{name} has {len(value)} characters; allowed are 1 to {longest}")

    return dataclasses.field(metadata={"check": check})


def one_of(allowed: frozenset[str]) -> Any:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise MessageError(f"{name} is {value!r}; allowed are {', '.join(sorted(allowed))}")

    return dataclasses.field(metadata={"check": check})


def gpu() -> Any:
    def check(name: str, value: Any) -> None:
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= 64):
            raise MessageError(f"{name} must be null or a GPU UUID of at most 64 characters")

    return dataclasses.field(metadata={"check": check})


def region_sizes() -> Any:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= MAX_WORLD:
            raise MessageError(f"{name} must list one size for each of 1 to {MAX_WORLD} ranks")
        for rank, size in enumerate(value):
            if type(size) is not int or not 0 <= size <= REGION_SPACE_BYTES:
                raise MessageError(
                    f"{name}[{rank}] is {size!r}; allowed are 0 to {REGION_SPACE_BYTES} bytes"
                )

    return dataclasses.field(metadata={"check": check})


def ranks() -> Any:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= MAX_WORLD:
            raise MessageError(f"{name} must list 1 to {MAX_WORLD} ranks")
        for rank in value:
            if type(rank) is not int or not 0 <= rank < MAX_WORLD:
                raise MessageError(f"{name} holds {rank!r}; allowed are 0 to {MAX_WORLD - 1}")

    return dataclasses.field(metadata={"check": check})


@dataclass(frozen=True, kw_only=True)
class Message:
    """Base of all messages: checks every field when it is made, here or by decoding."""

    TYPE: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check: Check = field.metadata["check"]
            check(f"{self.TYPE}.{field.name}", getattr(self, field.name))
