"""Object metadata and conditions, which all three kinds have; used by the mirror."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

ConditionStatus = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, kw_only=True)
class ObjectMeta:
    """The part of metadata that EPFabric reads; the rest of it is dropped."""

    OPEN: ClassVar[bool] = True
    name: str
    namespace: str | None = None
    uid: str | None = None
    generation: int | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Condition:
    type: str
    status: ConditionStatus
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int | None = None


def find(conditions: Iterable[Condition], type_: str) -> Condition | None:
    return next((c for c in conditions if c.type == type_), None)


def is_true(conditions: Iterable[Condition], type_: str) -> bool:
    found = find(conditions, type_)
    return found is not None and found.status == "True"


def keep_transition(new: Condition, old: Iterable[Condition]) -> Condition:
    """`new` with the time of the last change of status, which is the old one if status is equal."""
    before = find(old, new.type)
    if before is not None and before.status == new.status:
        return replace(new, last_transition_time=before.last_transition_time)
    return new
