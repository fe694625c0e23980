"""What a pod may do to its agent's socket: clear errors, everything given back, nobody notices."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.abuse.seat import Seat, ask, hello, open_socket, refused, register, said
from agent.two_agents import WAIT_S, TwoAgents
from harness.process import wait_until

MOST_FDS = 253  # what the kernel lets one message carry
ORPHAN = Path(__file__).with_name("orphan.py")


def files(pair: TwoAgents) -> int:
    return len(os.listdir(f"/proc/{pair.agents['a'].pid}/fd"))


@pytest.fixture
def nothing_left(pair: TwoAgents) -> Iterator[None]:
    """The agent holds as many files afterwards as it did before."""
    before = files(pair)
    yield
    wait_until(lambda: files(pair) <= before, WAIT_S, f"files to be {before}", pair.agents["a"])


@pytest.mark.usefixtures("nothing_left")
def test_ten_thousand_descriptors_are_all_closed(pair: TwoAgents) -> None:
    mine, theirs = os.pipe()
    messages: list[dict[str, object]] = [register(4096), {"type": "join"}, {"type": "what"}, {}]
    sent = 0
    for number in range(20):
        with open_socket(pair.socket("a")) as sock:
            for index in range(65):
                code, _ = refused(ask(sock, messages[index % 4], *[theirs] * 4))
                assert code == ("bad-state" if index % 4 < 2 else "bad-request")
            code, text = refused(ask(sock, register(4096), *[theirs] * MOST_FDS))
            assert (code, "4 files" in text) == ("bad-request", True)
            if number % 2:
                refused(ask(sock, hello(rank=9), theirs))  # and the next one is never read
            socket.send_fds(sock, [b"x"], [theirs] * MOST_FDS)
            sent += 65 * 4 + 2 * MOST_FDS
    assert sent >= 10_000
    os.close(theirs)
    ready, _, _ = select.select([mine], [], [], WAIT_S)
    assert ready, "somebody still holds a descriptor"
    assert os.read(mine, 1) == b""
    os.close(mine)


def lingering(sink: socket.socket) -> tuple[socket.socket, socket.socket]:
    """A socket that takes a minute to close, and its other end."""
    ours = socket.create_connection(sink.getsockname())
    other, _ = sink.accept()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    ours.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(bytes(1 << 16))
    return ours, other


def send(sock: socket.socket, way: str, fd: int) -> None:
    """One packet with this descriptor, in a way in which the agent is to drop it."""
    if way == "unread":  # no answer can be sent, so that the first packet ends the conversation
        sock.shutdown(socket.SHUT_RD)
        sock.send(b"1")
    with contextlib.suppress(BrokenPipeError):
        socket.send_fds(sock, [b"{}"], [fd] * (MOST_FDS if way == "cut off" else 1))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("way", ["received", "cut off", "unread"])
def test_descriptors_that_take_long_to_close_stop_nobody_else(pair: TwoAgents, way: str) -> None:
    with contextlib.ExitStack() as ends:
        sink = ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        for _ in range(20):  # until the agent is the one that lets go last
            slow, other = lingering(sink)
            ends.callback(other.close)
            sock = ends.enter_context(open_socket(pair.socket("a")))
            send(sock, way, slow.fileno())
            closing = threading.Thread(target=slow.close, daemon=True)
            closing.start()
            closing.join(0.2)
            if not closing.is_alive():
                break
        else:
            pytest.fail("the agent was always faster")
        neighbour = ends.enter_context(open_socket(pair.socket("a", "other")))
        neighbour.settimeout(30.0)  # half of what the close takes
        assert refused(ask(neighbour, {"type": "join"})) == ("bad-state", "hello comes first")


def odd_packets(rng: random.Random) -> Iterator[bytes]:
    good = json.dumps(hello()).encode()
    yield from (b"{", b"[]", b"0", b"null", b'"', b"\x00", b"\xff\xfe", b'{"type":"\xff"}')
    yield from (b" " * 4096, b"[" * 4096, b'{"type":' * 500, b"x" * 4097, b"{}" * 40_000)
    yield from (good[: rng.randrange(1, len(good))] for _ in range(20))
    odd: list[object] = [None, True, 0, -1, 1 << 70, 1e99, "", "x", "\ud800", [], {}, "a" * 3000]
    for name in hello():
        for value in odd:
            yield json.dumps(hello() | {name: value}).encode()
    numbers = (b"NaN", b"1e400", b"-0.5", b"9" * 4000)
    yield from (good.replace(b"0", number, 1) for number in numbers)
    yield good[:-1] + b',"rank":0}'
    for _ in range(100):
        at, packet = rng.randrange(len(good)), bytearray(good)
        packet[at] ^= 1 << rng.randrange(8)
        yield bytes(packet)


@pytest.mark.usefixtures("nothing_left")
def test_packets_that_make_no_sense_are_answered_and_the_next_one_is_heard(
    pair: TwoAgents,
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    packets = list(odd_packets(random.Random(seed)))
    sock = open_socket(pair.socket("a"))
    for number, packet in enumerate(packets):
        if number % 150 == 149:  # a connection has a rate
            sock.close()
            sock = open_socket(pair.socket("a"))
        sock.send(packet)
        answer = said(sock)
        if answer.get("ok"):  # a flipped bit or `"gpu": null` may make a hello that is a good one
            assert json.loads(packet)["type"] == "hello"
            sock.close()
            sock = open_socket(pair.socket("a"))
            continue
        code, text = refused(answer)
        assert code in ("bad-request", "abi", "rank", "gpu", "duplicate-rank"), packet
        assert 0 < len(text) <= 4096
    sock.send(b"")  # the same as end of file
    assert said(sock) == {}
    sock.close()


def test_hellos_that_do_not_fit_are_refused_with_what_to_do(pair: TwoAgents) -> None:
    cases: list[tuple[dict[str, object], str, str]] = [
        (
            hello(1, 3),
            "duplicate-rank",
            "is held by local .* on node a; local .*own rank",
        ),
        (hello(2, 4), "world-size", "has 4 ranks, local .* said 3: give every pod .* WORLD_SIZE"),
        (hello(3, 3), "rank", "rank 3 is outside a world of 3 ranks: check RANK and WORLD_SIZE"),
        (hello(-1, 3), "bad-request", "hello.rank is -1; allowed are 0 to 4095"),
        (hello(0, 0), "bad-request", "hello.world_size is 0; allowed are 1 to 4096"),
        (hello(0, 1 << 40), "bad-request", "hello.world_size is .* allowed are 1 to 4096"),
        (hello(0, 3, group="other"), "bad-request", "hello has no field 'group'"),
        (hello(0, 3, namespace="kube-system"), "bad-request", "hello has no field 'namespace'"),
        (
            hello(0, 3, abi=7),
            "abi",
            "speaks version 7 .* this node version 1: wait until",
        ),
        (hello(0, 3, gpu="GPU-1"), "gpu", "this node has no GPU 'GPU-1' that its agent can see"),
    ]
    with Seat(pair.socket("a"), 1, 3) as seat:
        code, text = refused(ask(seat.sock, hello(1, 3)))
        assert (code, text) == ("bad-state", "this connection has said hello already")
        with open_socket(pair.socket("a")) as sock:
            for request, code, pattern in cases:
                got = refused(ask(sock, request))
                assert got[0] == code, got
                assert re.search(pattern, got[1]), got


def test_a_flood_of_connections_is_held_to_its_rate(pair: TwoAgents) -> None:
    """What is over the limit waits in the socket's queue, at no cost of the agent's."""
    codes: list[tuple[str, str]] = []
    with contextlib.ExitStack() as ends:
        held: list[socket.socket] = []
        full, begin = False, time.monotonic()
        while not (full and codes) and time.monotonic() - begin < WAIT_S:
            sock = ends.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            sock.setblocking(False)
            try:
                sock.connect(str(pair.socket("a")))
                held.append(sock)
            except BlockingIOError:
                full = True
                time.sleep(0.02)
            for other in select.select(held, [], [], 0)[0]:
                held.remove(other)
                if answer := said(other):
                    codes.append(refused(answer))
        assert full
        assert {code for code, _ in codes} == {"quota"}
        assert "at most 128 connections at once: close some" in codes[0][1]
    answered, begin = 0, time.monotonic()
    while time.monotonic() - begin < 4:
        with contextlib.suppress(OSError), open_socket(pair.socket("a")) as sock:
            sock.settimeout(0.5)
            answered += bool(ask(sock, {"type": "join"}))
    took = time.monotonic() - begin
    assert 0 < answered <= 256 + 50 * took


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("python", "its session ended without leave"),
        ("c", "its process ended .another process still holds its socket"),
    ],
)
def test_a_child_that_outlives_its_rank_does_not_keep_the_session(
    pair: TwoAgents, how: str, why: str
) -> None:
    with Seat(pair.socket("b"), 0, 2) as seat:
        command = [sys.executable, str(ORPHAN), str(pair.socket("a")), "1", "2", how]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as orphan:
            seat.join()
            seat.joined()
            assert orphan.wait(WAIT_S) == 0
            assert orphan.stdout is not None
            child = int(orphan.stdout.readline())
        try:
            reason = said(seat.sock)["reason"]
            os.kill(child, 0)  # it lives
        finally:
            os.kill(child, signal.SIGKILL)
        assert re.search(f"rank 1 .*on node a. was lost: {why}", reason), reason
