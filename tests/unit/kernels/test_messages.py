"""Session messages: what one side encodes the other decodes, and nothing else gets through."""

import dataclasses
import json
import random
from typing import Any

import pytest
from epfabric import messages
from epfabric.messages import MessageError

HELLO: dict[str, Any] = {
    "type": "hello", "abi": 1, "rank": 0, "world_size": 8, "gpu": None, "pid": 123,
}  # fmt: skip
HELLO_REPLY = messages.HelloReply(
    abi=1, node="n", agent_pid=7, group="ns/g", fabric="moe", rings=8, depth=1024, batch=8,
    signals=16, world_size=8, rank=0, max_inflight=256, barrier_timeout_ms=1000,
    join_timeout_ms=1000, pod_bytes=4096, agent_bytes=4096,
)  # fmt: skip


REQUESTS: list[messages.Request] = [
    messages.Hello(abi=1, oldest=1, rank=4095, world_size=4096, gpu="GPU-1", pid=1),
    messages.Register(kind="memfd", bytes=64 << 30),
    messages.Offer(kind="posix_fd", bytes=2 << 20, name="window", note="of a GPU"),
    messages.Unregister(name="window"),
    messages.PeerMemory(rank=4095, name="window", wait_ms=0),
    messages.Tried(nvlink="none", reason="no GPU"),
    messages.Join(),
    messages.Leave(),
]
REPLIES: list[messages.Reply] = [
    HELLO_REPLY,
    messages.RegisterReply(region=0, offset=65536, bytes=4096),
    messages.UnregisterReply(),
    messages.PeerMemoryReply(bytes=2 << 20, note=""),
    messages.TriedReply(),
    messages.Trial(ranks=(0, 4095)),
    messages.JoinReply(epoch=1, regions=(0, 4096, 64 << 30)),
    messages.JoinReply(epoch=2, regions=(64 << 30,) * 4096),
    messages.LeaveReply(),
    messages.ErrorReply(code="join-timeout", message="ranks 3, 4 are missing"),
    messages.Failed(epoch=1, reason="rank 3 (ns/pod) was lost"),
]


@pytest.mark.parametrize("message", REQUESTS)
def test_requests_survive_the_wire(message: messages.Request) -> None:
    assert messages.decode_request(messages.encode(message)) == message


@pytest.mark.parametrize("message", REPLIES)
def test_replies_survive_the_wire(message: messages.Reply) -> None:
    packet = messages.encode(message)
    assert len(packet) <= messages.MAX_PACKET_BYTES
    assert messages.decode_reply(packet) == message


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"rank": -1}, "rank"),
        ({"rank": 4096}, "rank"),
        ({"rank": "0"}, "rank"),
        ({"rank": True}, "rank"),
        ({"rank": 0.0}, "rank"),
        ({"rank": None}, "rank"),
        ({"world_size": 0}, "world_size"),
        ({"world_size": 4097}, "world_size"),
        ({"gpu": ""}, "gpu"),
        ({"gpu": 3}, "gpu"),
        ({"gpu": "x" * 65}, "gpu"),
        ({"type": "hullo"}, "type"),
        ({"type": ["hello"]}, "type"),
        ({"type": "leave"}, "abi"),
        ({"colour": "red"}, "colour"),
        ({"type": "register", "kind": "hole", "bytes": 4096}, "abi"),
    ],
)
def test_bad_requests_name_the_field(change: dict[str, Any], names: str) -> None:
    with pytest.raises(MessageError, match=names):
        messages.decode_request(json.dumps(HELLO | change).encode())


@pytest.mark.parametrize("missing", ["abi", "rank", "world_size", "gpu", "pid", "type"])
def test_missing_fields_are_named(missing: str) -> None:
    body = {k: v for k, v in HELLO.items() if k != missing}
    with pytest.raises(MessageError, match=missing):
        messages.decode_request(json.dumps(body).encode())


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{" * 5000,
        b"[" * 60000,
        b'{"type":"leave"}{"type":"leave"}',
        b'{"type":"join","type":"leave"}',
        b'{"type":"hello","rank":' + b"9" * 5000 + b"}",
        b" " * 70000,
    ],
)
def test_garbage_is_a_message_error(packet: bytes) -> None:
    with pytest.raises(MessageError):
        messages.decode_request(packet)
    with pytest.raises(MessageError):
        messages.decode_reply(packet)


@pytest.mark.parametrize("size", [0, 1, 4095, 4097, (64 << 30) + 4096])
def test_region_sizes_are_whole_pages(size: int) -> None:
    with pytest.raises(MessageError, match="bytes"):
        messages.Register(kind="memfd", bytes=size)


@pytest.mark.parametrize("depth", [0, 1, 3, 1000, 1 << 17, "8", True])
def test_depth_is_a_power_of_two(depth: Any) -> None:
    with pytest.raises(MessageError, match="depth"):
        dataclasses.replace(HELLO_REPLY, depth=depth)


def test_a_reply_cannot_be_half_a_refusal() -> None:
    for body in (
        {"ok": False},
        {"ok": False, "error": "no"},
        {"ok": False, "error": {"code": "rank", "message": "m"}, "type": "hello"},
        {"ok": False, "error": {"code": "", "message": "m"}},
        {"ok": 1, "type": "leave"},
        {"ok": True},
        {"ok": True, "type": "failed", "epoch": 1, "reason": "r"},
    ):
        with pytest.raises(MessageError):
            messages.decode_reply(json.dumps(body).encode())


def hello_of(abi: int, **more: object) -> bytes:
    fields = {"rank": 0, "world_size": 2, "gpu": None, "pid": 1}
    return json.dumps({"type": "hello", "abi": abi, **fields, **more}).encode()


def test_a_newer_library_that_speaks_this_version_too_is_understood() -> None:
    hello = messages.decode_request(hello_of(9, oldest=1, new_field="of version 9"))
    assert isinstance(hello, messages.Hello)
    assert (hello.abi, hello.oldest, hello.world_size) == (9, 1, 2)


@pytest.mark.parametrize(
    ("abi", "oldest", "text"),
    [
        (9, 8, "versions 8 to 9 .* version 1: wait"),
        (0, 0, "version 0 .* version 1: install a newer"),
    ],
)
def test_a_library_without_a_common_version_is_told_both(abi: int, oldest: int, text: str) -> None:
    with pytest.raises(messages.OtherVersion, match=text):
        messages.decode_request(hello_of(abi, oldest=oldest, other={}))


def test_other_memory_is_another_kind_of_register() -> None:
    offer = messages.Offer(kind="posix_fd", bytes=2 << 20, name="window", note="")
    body = json.loads(messages.encode(offer))
    assert body["type"] == messages.Register.TYPE
    for change, names in (
        ({"kind": "memfd"}, "name"),
        ({"kind": "fabric"}, "name"),
        ({"kind": ["posix_fd"]}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"note": "x" * 513}, "note"),
        ({"note": None}, "note"),
        ({"bytes": 4097}, "bytes"),
        ({"offset": 0}, "offset"),
    ):
        with pytest.raises(MessageError, match=names):
            messages.decode_request(json.dumps(body | change).encode())


def test_agents_that_know_only_memfds_understand_what_they_are_asked_for_those() -> None:
    """As before, to the byte: an older side refuses fields that it does not know."""
    assert messages.encode(messages.Register(kind="memfd", bytes=4096)) == (
        b'{"type":"register","kind":"memfd","bytes":4096}'
    )
    assert messages.encode(messages.JoinReply(epoch=1, regions=(1,))) == (
        b'{"ok":true,"type":"join","epoch":1,"regions":[1]}'
    )


@pytest.mark.parametrize(
    "ranks", [[], [-1], [4096], ["0"], [True], 3, None, "01", {"0": 1}, [0] * 4097]
)
def test_a_trial_names_ranks(ranks: Any) -> None:
    packet = json.dumps({"type": "trial", "ranks": ranks}).encode()
    with pytest.raises(MessageError, match="ranks"):
        messages.decode_reply(packet)


def test_random_damage_is_a_message_error_or_another_valid_message() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    whole = [messages.encode(one) for one in (*REQUESTS, *REPLIES) if len(str(one)) < 1000]
    alphabet = b'{}[]",:0123456789-.eE truefalsenull\\u\x00\xff'
    understood = 0
    for _ in range(20_000):
        packet = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(1, 4)):
            at, other = rng.randrange(len(packet) + 1), rng.choice(whole)
            piece = bytes(rng.choices(alphabet, k=rng.randrange(4)))
            if rng.random() < 0.2:
                start = rng.randrange(len(other))
                piece = other[start : start + rng.randrange(20)]
            packet[at : at + rng.randrange(6)] = piece
        for decode in (messages.decode_request, messages.decode_reply):
            try:
                message = decode(bytes(packet))
            except MessageError:
                continue
            assert decode(messages.encode(message)) == message
            understood += 1
    assert understood > 100
