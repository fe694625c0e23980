"""Session messages between a pod and its agent; used by epfabric.connect() and by the agent.

One JSON object a packet. Every message is a frozen dataclass that checks itself, so that neither
side can send what the other would refuse. Decoding is strict: an unknown type, an unknown or
missing field, a wrong type or a value out of bounds is a MessageError whose text names the field.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from epfabric.limits import (
    ABI_OLDEST,
    ABI_VERSION,
    MAX_BATCH,
    MAX_DEPTH,
    MAX_INFLIGHT,
    MAX_RINGS,
    MAX_SIGNALS,
    MAX_WORLD,
    MIN_DEPTH,
    PAGE_BYTES,
    REGION_ALIGN,
    REGION_SPACE_BYTES,
)
from epfabric.versions import Span, misfit

MAX_PACKET_BYTES = 64 * 1024
MAX_REQUEST_BYTES = 4 * 1024
MAX_TEXT = 4096
_MAX_PID = 1 << 30
_MAX_MS = 1 << 40
_MAX_MEMORY = 1 << 48
_MAX_EPOCH = 1 << 53

BAD_REQUEST = "bad-request"
ERROR_CODES = frozenset(
    {
        BAD_REQUEST,  # not a message of this protocol
        "bad-state",  # a message of this protocol at the wrong time
        "abi",  # library and agent, or two agents, speak no version in common
        "cordoned",  # the node admits no new group now; worth another try
        "rank",  # the rank is outside the group's world
        "world-size",  # the group was opened with another world size
        "duplicate-rank",  # another pod holds this rank
        "bad-memfd",  # the file descriptor is not what register() asks for
        "quota",  # more memory, sessions or regions than the fabric grants
        "tenant",  # more than the pod's tenant may have on this node
        "unsupported",  # named by the protocol, not served by this agent
        "join-timeout",  # ranks were missing when the join time-out passed
        "group-failed",  # the epoch ended
        "internal",  # the agent's fault
    }
)


class MessageError(ValueError):
    """A packet that is not a valid message; the text says which field and what is allowed."""


class OtherVersion(MessageError):
    """A hello, or an answer to it, of a version that this side does not speak."""


SPOKEN = Span(ABI_OLDEST, ABI_VERSION)
Check = Callable[[str, Any], None]


def _integer(low: int, high: int, multiple: int = 1) -> Any:
    def check(name: str, value: Any) -> None:
        if type(value) is not int:
            raise MessageError(f"{name} must be an integer, not {type(value).__name__}")
        if not low <= value <= high:
            raise MessageError(f"{name} is {value}; allowed are {low} to {high}")
        if value % multiple:
            raise MessageError(f"{name} is {value}; it must be a multiple of {multiple}")

    return dataclasses.field(metadata={"check": check})


def _depth() -> Any:
    def check(name: str, value: Any) -> None:
        if type(value) is not int or not MIN_DEPTH <= value <= MAX_DEPTH or value & (value - 1):
            raise MessageError(
                f"{name} is {value!r}; it must be a power of two in {MIN_DEPTH}..{MAX_DEPTH}"
            )

    return dataclasses.field(metadata={"check": check})


def _text(longest: int, *, empty: bool = False) -> Any:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise MessageError(f"{name} must be a string, not {type(value).__name__}")
        if len(value) > longest or not (value or empty):
            raise MessageError(f"{name} has {len(value)} characters; allowed are 1 to {longest}")

    return dataclasses.field(metadata={"check": check})


def _one_of(allowed: frozenset[str]) -> Any:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise MessageError(f"{name} is {value!r}; allowed are {', '.join(sorted(allowed))}")

    return dataclasses.field(metadata={"check": check})


def _gpu() -> Any:
    def check(name: str, value: Any) -> None:
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= 64):
            raise MessageError(f"{name} must be null or a GPU UUID of at most 64 characters")

    return dataclasses.field(metadata={"check": check})


def _region_sizes() -> Any:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, (list, tuple)) or not 1 <= len(value) <= MAX_WORLD:
            raise MessageError(f"{name} must list one size for each of 1 to {MAX_WORLD} ranks")
        for rank, size in enumerate(value):
            if type(size) is not int or not 0 <= size <= REGION_SPACE_BYTES:
                raise MessageError(
                    f"{name}[{rank}] is {size!r}; allowed are 0 to {REGION_SPACE_BYTES} bytes"
                )

    return dataclasses.field(metadata={"check": check})


@dataclass(frozen=True, kw_only=True)
class Message:
    """Base of all messages: checks every field when it is made, here or by decoding."""

    TYPE: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check: Check = field.metadata["check"]
            check(f"{self.TYPE}.{field.name}", getattr(self, field.name))


@dataclass(frozen=True, kw_only=True)
class Hello(Message):
    """First request of a session: who this process claims to be inside its group."""

    TYPE: ClassVar[str] = "hello"
    abi: int = _integer(0, 1 << 16)  # the newest version that the library speaks
    oldest: int = _integer(0, 1 << 16)
    rank: int = _integer(0, MAX_WORLD - 1)
    world_size: int = _integer(1, MAX_WORLD)
    gpu: str | None = _gpu()
    pid: int = _integer(0, _MAX_PID)


@dataclass(frozen=True, kw_only=True)
class HelloReply(Message):
    """The session's geometry; the packet carries the pod's memfd, then the agent's memfd."""

    TYPE: ClassVar[str] = "hello"
    abi: int = _integer(ABI_OLDEST, ABI_VERSION)
    node: str = _text(253)
    agent_pid: int = _integer(0, _MAX_PID)
    group: str = _text(512)
    fabric: str = _text(63)
    rings: int = _integer(1, MAX_RINGS)
    depth: int = _depth()
    batch: int = _integer(1, MAX_BATCH)
    signals: int = _integer(1, MAX_SIGNALS)
    world_size: int = _integer(1, MAX_WORLD)
    rank: int = _integer(0, MAX_WORLD - 1)
    max_inflight: int = _integer(1, MAX_INFLIGHT)
    barrier_timeout_ms: int = _integer(1, _MAX_MS)
    join_timeout_ms: int = _integer(1, _MAX_MS)
    pod_bytes: int = _integer(1, _MAX_MEMORY)
    agent_bytes: int = _integer(1, _MAX_MEMORY)


@dataclass(frozen=True, kw_only=True)
class Register(Message):
    """Offers memory to the fabric, before join; the packet carries its memfd."""

    TYPE: ClassVar[str] = "register"
    kind: str = _one_of(frozenset({"memfd"}))
    bytes: int = _integer(PAGE_BYTES, REGION_SPACE_BYTES, PAGE_BYTES)


@dataclass(frozen=True, kw_only=True)
class RegisterReply(Message):
    """Where the region lies in the rank's offset space, in bytes."""

    TYPE: ClassVar[str] = "register"
    region: int = _integer(0, 1 << 16)
    offset: int = _integer(0, REGION_SPACE_BYTES - 1, REGION_ALIGN)
    bytes: int = _integer(PAGE_BYTES, REGION_SPACE_BYTES, PAGE_BYTES)


@dataclass(frozen=True, kw_only=True)
class Join(Message):
    """Asks to be let into the epoch; answered when all ranks are there, or the time-out passed."""

    TYPE: ClassVar[str] = "join"


@dataclass(frozen=True, kw_only=True)
class JoinReply(Message):
    """The epoch is open. regions[rank] is the size in bytes of that rank's offset space."""

    TYPE: ClassVar[str] = "join"
    epoch: int = _integer(1, _MAX_EPOCH)
    regions: tuple[int, ...] = _region_sizes()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "regions", tuple(self.regions))


@dataclass(frozen=True, kw_only=True)
class Leave(Message):
    """Orderly end of the session: outstanding work is drained, the group goes on."""

    TYPE: ClassVar[str] = "leave"


@dataclass(frozen=True, kw_only=True)
class LeaveReply(Message):
    """Answer to leave; the agent closes the socket after it."""

    TYPE: ClassVar[str] = "leave"


@dataclass(frozen=True, kw_only=True)
class ErrorReply(Message):
    """A request that was refused; the message says what to do."""

    TYPE: ClassVar[str] = "error"
    code: str = _text(64)  # one of ERROR_CODES, or one that a newer agent knows
    message: str = _text(MAX_TEXT)


@dataclass(frozen=True, kw_only=True)
class Failed(Message):
    """Unasked: the epoch ended. The abort word in the agent's memfd was set before."""

    TYPE: ClassVar[str] = "failed"
    epoch: int = _integer(0, _MAX_EPOCH)
    reason: str = _text(MAX_TEXT)


Request = Hello | Register | Join | Leave
Reply = HelloReply | RegisterReply | JoinReply | LeaveReply | ErrorReply | Failed

_REQUESTS: dict[str, type[Request]] = {c.TYPE: c for c in (Hello, Register, Join, Leave)}
_REPLIES: dict[str, type[Reply]] = {
    c.TYPE: c for c in (HelloReply, RegisterReply, JoinReply, LeaveReply)
}

M = TypeVar("M", bound=Message)


def encode(message: Request | Reply) -> bytes:
    """The packet of a message; raises MessageError if it does not fit one packet."""
    fields = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    body: dict[str, Any]
    if isinstance(message, ErrorReply):
        body = {"ok": False, "error": fields}
    elif isinstance(message, (Failed, Hello, Register, Join, Leave)):
        body = {"type": message.TYPE, **fields}
    else:
        body = {"ok": True, "type": message.TYPE, **fields}
    packet = json.dumps(body, separators=(",", ":")).encode()
    if len(packet) > MAX_PACKET_BYTES:
        raise MessageError(
            f"{message.TYPE} takes {len(packet)} bytes; a packet holds {MAX_PACKET_BYTES}"
        )
    return packet


def decode_request(packet: bytes) -> Request:
    """What a pod sent; raises MessageError (to be answered with code bad-request)."""
    body = _object(packet, MAX_REQUEST_BYTES)
    kind = body.pop("type", None)
    if not isinstance(kind, str) or kind not in _REQUESTS:
        raise MessageError(f"type is {kind!r}; requests are {', '.join(sorted(_REQUESTS))}")
    if kind == Hello.TYPE:
        _fit(body)
    return _build(_REQUESTS[kind], body)


def _fit(hello: dict[str, Any]) -> None:
    """Before all else: another version may have other fields. Those of a newer one are dropped."""
    newest = hello.get("abi")
    oldest = hello.setdefault("oldest", newest)
    if type(newest) is not int or type(oldest) is not int:
        return
    if not Span(oldest, newest).meets(SPOKEN):
        raise OtherVersion(misfit(Span(oldest, newest), SPOKEN)[:MAX_TEXT])
    if newest > SPOKEN.newest:
        known = {f.name for f in dataclasses.fields(Hello)}
        for name in set(hello) - known:
            del hello[name]


def decode_reply(packet: bytes) -> Reply:
    """What an agent sent: an answer, a refusal, or the unasked news that the epoch failed."""
    body = _object(packet)
    if body.get("type") == Failed.TYPE and "ok" not in body:
        body.pop("type")
        return _build(Failed, body)
    ok = body.pop("ok", None)
    if ok is False:
        error = body.pop("error", None)
        if not isinstance(error, dict) or body:
            raise MessageError("a refusal must hold ok and error, and nothing else")
        return _build(ErrorReply, error)
    kind = body.pop("type", None)
    if ok is not True or not isinstance(kind, str) or kind not in _REPLIES:
        raise MessageError(f"the answer has ok={ok!r}, type={kind!r}: not one of this protocol")
    theirs = body.get("abi")
    if kind == HelloReply.TYPE and type(theirs) is int and theirs not in SPOKEN:
        raise OtherVersion(misfit(SPOKEN, Span(theirs, theirs)))
    return _build(_REPLIES[kind], body)


def _object(packet: bytes, most: int = MAX_PACKET_BYTES) -> dict[str, Any]:
    if len(packet) > most:
        raise MessageError(f"the packet has {len(packet)} bytes; at most {most}")
    try:
        body = json.loads(packet, object_pairs_hook=_unique)
    except MessageError:
        raise
    except (ValueError, RecursionError) as error:
        raise MessageError(f"the packet is not one JSON object: {error}") from None
    if not isinstance(body, dict):
        raise MessageError("the packet is not one JSON object")
    return body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) != len(pairs):
        raise MessageError("a field stands twice in one object")
    return body


def _build(cls: type[M], fields: dict[str, Any]) -> M:
    names = {f.name for f in dataclasses.fields(cls)}
    if unknown := sorted(set(fields) - names):
        raise MessageError(f"{cls.TYPE} has no field {unknown[0]!r}; it has {_listed(names)}")
    if missing := sorted(names - set(fields)):
        raise MessageError(f"{cls.TYPE} lacks the field {missing[0]!r}; it needs {_listed(names)}")
    return cls(**fields)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
