"""Between JSON objects and the frozen dataclasses of the mirror; used by every typed object.

Field names are camelCase in JSON and snake_case in Python; where the rule does not give the name,
the field says it: `field(metadata={"json": "perGPU"})`. A field without a value is left out.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")


class MirrorError(ValueError):
    """An object that does not fit its type; the text names the field and what is expected."""


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def fields_of(cls: Any) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    """JSON name → (field, resolved type) of a dataclass."""
    return _fields_of(cls)


@functools.cache
def _fields_of(cls: Any) -> dict[str, tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(cls)
    return {
        f.metadata.get("json", camel(f.name)): (f, hints[f.name]) for f in dataclasses.fields(cls)
    }


def from_dict(cls: type[T], data: Any, *, where: str = "", strict: bool = True) -> T:
    """Build `cls` from a JSON object. `where` is the path for messages.

    Unknown fields are refused when `strict`; otherwise they are dropped, which is right only for
    what an API server with a newer schema has already accepted, and for classes marked OPEN.
    """
    if not isinstance(data, Mapping):
        raise MirrorError(f"{where or cls.__name__} must be an object, not {_kind(data)}")
    known = fields_of(cls)
    if strict and not getattr(cls, "OPEN", False):
        for name in data:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise MirrorError(f"{_join(where, str(name))} is not a field{hint}")
    values: dict[str, Any] = {}
    for name, (field, hint) in known.items():
        if data.get(name) is not None:
            values[field.name] = _value(hint, data[name], _join(where, name), strict)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise MirrorError(f"{_join(where, name)} is required")
    return cls(**values)


def to_dict(value: Any) -> Any:
    """The JSON form of a mirror object. None, empty lists and empty maps are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        out = {}
        for name, (field, _) in fields_of(type(value)).items():
            item = getattr(value, field.name)
            if item is None or (isinstance(item, tuple | Mapping) and not item):
                continue
            out[name] = to_dict(item)
        return out
    if isinstance(value, tuple):
        return [to_dict(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_dict(item) for key, item in value.items()}
    return value


def _value(hint: Any, value: Any, where: str, strict: bool) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        (inner,) = [arg for arg in get_args(hint) if arg is not type(None)]
        return _value(inner, value, where, strict)
    if origin is Literal:
        if value not in get_args(hint):
            allowed = ", ".join(map(str, get_args(hint)))
            raise MirrorError(f"{where} is {value!r}; allowed are {allowed}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise MirrorError(f"{where} must be a list, not {_kind(value)}")
        inner = get_args(hint)[0]
        return tuple(_value(inner, v, f"{where}[{i}]", strict) for i, v in enumerate(value))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise MirrorError(f"{where} must be an object, not {_kind(value)}")
        inner = get_args(hint)[1]
        return {str(k): _value(inner, v, f"{where}[{k}]", strict) for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        return from_dict(cast(Any, hint), value, where=where, strict=strict)
    return _scalar(hint, value, where)


def _scalar(hint: type, value: Any, where: str) -> Any:
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        names = {str: "a string", int: "an integer", bool: "true or false", float: "a number"}
        raise MirrorError(f"{where} must be {names[hint]}, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    names = {str: "a string", int: "an integer", bool: "a boolean", float: "a number"}
    if value is None:
        return "nothing"
    fallback = "an object" if isinstance(value, Mapping) else "a list"
    return f"{names.get(type(value), fallback)} ({value!r:.40})"


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
