"""Session messages of any bytes: a valid message that survives the wire, or a MessageError."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from epfabric import messages
from fuzz.generate import TIMES, changed, say, seeds

COUNT = 200_000
REQUESTS = [
    messages.Hello(abi=1, oldest=1, rank=4, world_size=8, gpu=None, pid=12),
    messages.Hello(abi=1, oldest=1, rank=0, world_size=4096, gpu="GPU-1", pid=1),
    messages.Register(kind="memfd", bytes=1 << 20),
    messages.Offer(kind="posix_fd", bytes=1 << 21, name="buffer", note=""),
    messages.Unregister(name="buffer"),
    messages.PeerMemory(rank=3, name="buffer", wait_ms=1000),
    messages.Tried(nvlink="none", reason="no peer access"),
    messages.Join(),
    messages.Leave(),
]
REPLIES = [
    messages.HelloReply(
        abi=1, node="n", agent_pid=7, group="ns/g", fabric="moe", rings=8, depth=1024, batch=8,
        signals=16, world_size=8, rank=0, max_inflight=256, barrier_timeout_ms=1000,
        join_timeout_ms=1000, pod_bytes=4096, agent_bytes=4096,
    ),
    messages.RegisterReply(region=0, offset=65536, bytes=4096),
    messages.JoinReply(epoch=1, regions=(0, 4096, 64 << 30)),
    messages.UnregisterReply(),
    messages.PeerMemoryReply(bytes=1 << 21, note="7"),
    messages.TriedReply(),
    messages.Trial(ranks=(0, 1)),
    messages.LeaveReply(),
    messages.ErrorReply(code="join-timeout", message="ranks 3, 4 are missing"),
    messages.Failed(epoch=1, reason="rank 3 (ns/pod) was lost"),
]  # fmt: skip


@pytest.mark.timeout(120 + 300 * TIMES)
@pytest.mark.parametrize(
    ("decode", "valid"),
    [(messages.decode_request, REQUESTS), (messages.decode_reply, REPLIES)],
    ids=["requests", "replies"],
)
def test_any_bytes_are_a_message_or_a_message_error(
    decode: Callable[[bytes], Any], valid: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    packets = [messages.encode(message) for message in valid]
    understood = 0
    for seed in seeds(COUNT):
        rng = random.Random(seed)
        packet = changed(rng, rng.choice(packets), packets)
        try:
            message = decode(packet)
        except messages.MessageError:
            continue
        except (Exception, pytest.fail.Exception) as error:
            raise AssertionError(f"EPFABRIC_SEED={seed}: {packet!r}") from error
        understood += 1
        assert decode(messages.encode(message)) == message, f"EPFABRIC_SEED={seed}: {packet!r}"
    say(capsys, f"{decode.__name__}: {len(seeds(COUNT)):,} executions, {understood:,} understood")
