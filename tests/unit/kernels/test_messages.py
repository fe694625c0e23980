"""Session messages: what one side encodes the other decodes, and nothing else gets through."""

import dataclasses
import json
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


@pytest.mark.parametrize(
    "message",
    [
        messages.Hello(abi=1, oldest=1, rank=4095, world_size=4096, gpu="GPU-1", pid=1),
        messages.Register(kind="memfd", bytes=64 << 30),
        messages.Join(),
        messages.Leave(),
    ],
)
def test_requests_survive_the_wire(message: messages.Request) -> None:
    assert messages.decode_request(messages.encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        HELLO_REPLY,
        messages.RegisterReply(region=0, offset=65536, bytes=4096),
        messages.JoinReply(epoch=1, regions=(0, 4096, 64 << 30)),
        messages.JoinReply(epoch=2, regions=(64 << 30,) * 4096),
        messages.LeaveReply(),
        messages.ErrorReply(code="join-timeout", message="ranks 3, 4 are missing"),
        messages.Failed(epoch=1, reason="rank 3 (ns/pod) was lost"),
    ],
)
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
