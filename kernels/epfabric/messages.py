"""Session messages between a pod and its agent; used by epfabric.connect() and by the agent.

One JSON object a packet. Every message is a frozen dataclass that checks itself, so that neither
side can send what the other would refuse. Decoding is strict: an unknown type, an unknown or
missing field, a wrong type or a value out of bounds is a MessageError whose text names the field.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from epfabric import fields
from epfabric.fields import Message
from epfabric.fields import MessageError as MessageError  # is part of this module
from epfabric.limits import (
    ABI_OLDEST,
    ABI_VERSION,
    MAX_BATCH,
    MAX_INFLIGHT,
    MAX_RINGS,
    MAX_SIGNALS,
    MAX_WORLD,
    PAGE_BYTES,
    REGION_ALIGN,
    REGION_SPACE_BYTES,
)
from epfabric.versions import Span, misfit

MAX_PACKET_BYTES = 64 * 1024
MAX_REQUEST_BYTES = 4 * 1024
MAX_TEXT = 4096
MAX_NOTE = 512
_MAX_PID = 1 << 30
_MAX_MS = 1 << 40
_MAX_MEMORY = 1 << 48
_MAX_EPOCH = 1 << 53
_MAX_NAME = 64
MAX_WAIT_MS = 600_000
NvlinkKind = Literal["posix_fd", "none"]

BAD_REQUEST = "bad-request"
ERROR_CODES = frozenset(
    {
        BAD_REQUEST,  # not a message of this protocol
        "bad-state",  # a message of this protocol at the wrong time
        "abi",  # library and agent, or two agents, speak no version in common
        "cordoned",  # the node admits no new group now; worth another try
        "gpu",  # the GPU is not one of the pod's
        "rank",  # the rank is outside the group's world
        "world-size",  # the group was opened with another world size
        "duplicate-rank",  # another pod holds this rank
        "bad-memfd",  # the file descriptor is not what register() asks for
        "bad-dmabuf",  # nor what register_gpu() asks for, or the node's NICs take none
        "bad-fd",  # what came is not one file descriptor that other ranks may have
        "not-offered",  # the rank has no memory of that name, or is not on this node
        "quota",  # more memory, sessions, regions or descriptors than there may be
        "tenant",  # more than the pod's tenant may have on this node
        "unsupported",  # named by the protocol, not served by this agent
        "join-timeout",  # ranks were missing when the join time-out passed
        "group-failed",  # the epoch ended
        "internal",  # the agent's fault
    }
)


class OtherVersion(MessageError):
    """A hello, or an answer to it, of a version that this side does not speak."""


SPOKEN = Span(ABI_OLDEST, ABI_VERSION)


@dataclass(frozen=True, kw_only=True)
class Hello(Message):
    """First request of a session: who this process claims to be inside its group."""

    TYPE: ClassVar[str] = "hello"
    abi: int = fields.integer(0, 1 << 16)  # the newest version that the library speaks
    oldest: int = fields.integer(0, 1 << 16)
    rank: int = fields.integer(0, MAX_WORLD - 1)
    world_size: int = fields.integer(1, MAX_WORLD)
    gpu: str | None = fields.gpu()
    pid: int = fields.integer(0, _MAX_PID)


@dataclass(frozen=True, kw_only=True)
class HelloReply(Message):
    """The session's geometry; the packet carries the pod's memfd, then the agent's memfd."""

    TYPE: ClassVar[str] = "hello"
    abi: int = fields.integer(ABI_OLDEST, ABI_VERSION)
    node: str = fields.text(253)
    agent_pid: int = fields.integer(0, _MAX_PID)
    group: str = fields.text(512)
    fabric: str = fields.text(63)
    rings: int = fields.integer(1, MAX_RINGS)
    depth: int = fields.depth()
    batch: int = fields.integer(1, MAX_BATCH)
    signals: int = fields.integer(1, MAX_SIGNALS)
    world_size: int = fields.integer(1, MAX_WORLD)
    rank: int = fields.integer(0, MAX_WORLD - 1)
    max_inflight: int = fields.integer(1, MAX_INFLIGHT)
    barrier_timeout_ms: int = fields.integer(1, _MAX_MS)
    join_timeout_ms: int = fields.integer(1, _MAX_MS)
    pod_bytes: int = fields.integer(1, _MAX_MEMORY)
    agent_bytes: int = fields.integer(1, _MAX_MEMORY)


@dataclass(frozen=True, kw_only=True)
class Register(Message):
    """Offers memory to the fabric, before join; the packet carries its memfd, or the dma-buf of a
    GPU's memory."""

    TYPE: ClassVar[str] = "register"
    kind: str = fields.one_of(frozenset({"memfd", "dmabuf"}))
    bytes: int = fields.integer(PAGE_BYTES, REGION_SPACE_BYTES, PAGE_BYTES)


@dataclass(frozen=True, kw_only=True)
class RegisterReply(Message):
    """Where the region lies in the rank's offset space, in bytes."""

    TYPE: ClassVar[str] = "register"
    region: int = fields.integer(0, 1 << 16)
    offset: int = fields.integer(0, REGION_SPACE_BYTES - 1, REGION_ALIGN)
    bytes: int = fields.integer(PAGE_BYTES, REGION_SPACE_BYTES, PAGE_BYTES)


@dataclass(frozen=True, kw_only=True)
class Offer(Message):
    """Another kind of register: memory that other ranks of the node may ask for, by its name; the
    packet carries its descriptor, which the agent keeps and never maps. Answered with offset 0.

    An agent that does not know this kind, or the other messages for it, answers bad-request.
    """

    TYPE: ClassVar[str] = "register"
    kind: str = fields.one_of(frozenset({"posix_fd"}))
    bytes: int = fields.integer(PAGE_BYTES, REGION_SPACE_BYTES, PAGE_BYTES)
    name: str = fields.text(_MAX_NAME)
    note: str = fields.text(MAX_NOTE, empty=True)  # for the ranks that ask


@dataclass(frozen=True, kw_only=True)
class Unregister(Message):
    """Takes an offer back. Ranks that have its descriptor already keep it."""

    TYPE: ClassVar[str] = "unregister"
    name: str = fields.text(_MAX_NAME)


@dataclass(frozen=True, kw_only=True)
class UnregisterReply(Message):
    """The agent holds the descriptor no longer."""

    TYPE: ClassVar[str] = "unregister"


@dataclass(frozen=True, kw_only=True)
class PeerMemory(Message):
    """Asks for what another rank of this epoch and node offers, which may come within wait_ms."""

    TYPE: ClassVar[str] = "peer_memory"
    rank: int = fields.integer(0, MAX_WORLD - 1)
    name: str = fields.text(_MAX_NAME)
    wait_ms: int = fields.integer(0, MAX_WAIT_MS)


@dataclass(frozen=True, kw_only=True)
class PeerMemoryReply(Message):
    """The packet carries the descriptor."""

    TYPE: ClassVar[str] = "peer_memory"
    bytes: int = fields.integer(PAGE_BYTES, REGION_SPACE_BYTES, PAGE_BYTES)
    note: str = fields.text(MAX_NOTE, empty=True)


@dataclass(frozen=True, kw_only=True)
class Trial(Message):
    """Unasked, before join is answered: these ranks of the node offer memory to be tried.

    Only ranks that offer some themselves are told.
    """

    TYPE: ClassVar[str] = "trial"
    ranks: tuple[int, ...] = fields.ranks()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "ranks", tuple(self.ranks))


@dataclass(frozen=True, kw_only=True)
class Tried(Message):
    """How this rank reaches the GPU memory of the node's other ranks, and why."""

    TYPE: ClassVar[str] = "tried"
    nvlink: NvlinkKind = fields.one_of(frozenset({"posix_fd", "none"}))  # noqa: RUF009 - a field
    reason: str = fields.text(MAX_NOTE)


@dataclass(frozen=True, kw_only=True)
class TriedReply(Message):
    TYPE: ClassVar[str] = "tried"


@dataclass(frozen=True, kw_only=True)
class Join(Message):
    """Asks to be let into the epoch; answered when all ranks are there, or the time-out passed."""

    TYPE: ClassVar[str] = "join"


@dataclass(frozen=True, kw_only=True)
class JoinReply(Message):
    """The epoch is open. regions[rank] is the size in bytes of that rank's offset space."""

    TYPE: ClassVar[str] = "join"
    epoch: int = fields.integer(1, _MAX_EPOCH)
    regions: tuple[int, ...] = fields.region_sizes()

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
    code: str = fields.text(64)  # one of ERROR_CODES, or one that a newer agent knows
    message: str = fields.text(MAX_TEXT)


@dataclass(frozen=True, kw_only=True)
class Failed(Message):
    """Unasked: the epoch ended. The abort word in the agent's memfd was set before."""

    TYPE: ClassVar[str] = "failed"
    epoch: int = fields.integer(0, _MAX_EPOCH)
    reason: str = fields.text(MAX_TEXT)


Request = Hello | Register | Offer | Unregister | PeerMemory | Tried | Join | Leave
Reply = (
    HelloReply
    | RegisterReply
    | UnregisterReply
    | PeerMemoryReply
    | TriedReply
    | JoinReply
    | LeaveReply
    | ErrorReply
    | Trial
    | Failed
)
Unasked = Trial | Failed

_REQUESTS: dict[str, type[Request]] = {
    c.TYPE: c for c in (Hello, Register, Unregister, PeerMemory, Tried, Join, Leave)
}
_REPLIES: dict[str, type[Reply]] = {
    c.TYPE: c
    for c in (
        HelloReply, RegisterReply, UnregisterReply, PeerMemoryReply, TriedReply, JoinReply,
        LeaveReply,
    )
}  # fmt: skip
_UNASKED: dict[str, type[Unasked]] = {c.TYPE: c for c in (Trial, Failed)}

M = TypeVar("M", bound=Message)


def encode(message: Request | Reply) -> bytes:
    """The packet of a message; raises MessageError if it does not fit one packet."""
    values = {f.name: getattr(message, f.name) for f in dataclasses.fields(message)}
    body: dict[str, Any]
    if isinstance(message, ErrorReply):
        body = {"ok": False, "error": values}
    elif isinstance(message, (Request, Unasked)):
        body = {"type": message.TYPE, **values}
    else:
        body = {"ok": True, "type": message.TYPE, **values}
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
    if kind == Offer.TYPE and body.get("kind") == "posix_fd":
        return _build(Offer, body)
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
    """What an agent sent: an answer, a refusal, or what nobody asked for."""
    body = _object(packet)
    unasked = body.get("type")
    if isinstance(unasked, str) and unasked in _UNASKED and "ok" not in body:
        body.pop("type")
        return _build(_UNASKED[unasked], body)
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


def _build(cls: type[M], given: dict[str, Any]) -> M:
    names = {f.name for f in dataclasses.fields(cls)}
    if unknown := sorted(set(given) - names):
        raise MessageError(f"{cls.TYPE} has no field {unknown[0]!r}; it has {_listed(names)}")
    if missing := sorted(names - set(given)):
        raise MessageError(f"{cls.TYPE} lacks the field {missing[0]!r}; it needs {_listed(names)}")
    return cls(**given)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
