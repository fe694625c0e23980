"""A pod's conversation with its agent, over a real socket, a real core and real descriptors: any
messages in any order, each with any files, and an end at any time. Nothing is raised, nobody has
more answers than packets, an honest session still works, and nothing stays behind.

What single messages may hold is test_sessions.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import select
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from epfabric import messages
from epfabric.limits import PAGE_BYTES
from epfabric.region import make_memfd
from epfabric_agent.groups.hub import NoReporter
from epfabric_agent.peers.client import Agent, PeerClient
from epfabric_agent.pki import authority
from epfabric_agent.pki.identity import NodeIdentity
from epfabric_agent.pods import Pod
from epfabric_agent.runtime import Runtime
from epfabric_agent.session.conversation import Conversation
from epfabric_agent.session.packets import Connection
from epfabric_agent.session.pod_thread import PodThread
from epfabric_agent.session.rate import Rate
from epfabric_agent.topology.discover import Inventory
from epfabric_agent.topology.machine import Machine
from epfabric_agent.topology.numa import find_cpus
from epfabric_crds import Settings
from epfabric_crds.node import Topology
from fuzz.generate import TIMES, changed, say, seeds

COUNT = 250
END_S = 60.0
MOST_FILES = 5  # one more than a packet may have
LENGTH = 20
FILES_EVERY = 50  # executions


@asynccontextmanager
async def agent(folder: Path) -> AsyncIterator[Runtime]:
    """Serves groups of its node."""

    async def nobody(client: PeerClient, group: str) -> Agent | None:
        return None

    identity, pki = NodeIdentity("a", "moe", "127.0.0.1"), folder / "pki"
    authority.make_authority(pki, 1)
    authority.issue(pki, identity, 1, pki)
    own = authority.load(pki, "a")
    machine = Machine()
    runtime = Runtime(
        identity,
        lambda: own,
        NoReporter(),
        nobody,
        machine,
        lambda: None,
        lambda _: Inventory(find_cpus(machine), Topology(), ()),
    )
    wanted = Settings()
    await runtime.apply(
        replace(
            wanted,
            transport=replace(wanted.transport, type="loopback"),
            proxies=replace(wanted.proxies, per_gpu=1),
            fifo=replace(wanted.fifo, depth=16, rings_per_proxy=1, signals=1),
        )
    )
    try:
        yield runtime
    finally:
        await runtime.close()


class Caller:
    """One process of the pod: what it sends, and what it hears."""

    def __init__(self, runtime: Runtime, pod: Pod, thread: PodThread) -> None:
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.setblocking(False)
        ever = Rate(1e9, 1 << 30)
        conversation = Conversation(Connection(theirs, thread), pod, runtime, ever)
        self.served = asyncio.create_task(conversation.run())
        self.sent = self.answered = self.unasked = self.refused = 0

    def send(self, packet: bytes, fds: list[int]) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.sock, [packet], fds)
            self.sent += 1

    def hear(self) -> list[messages.Reply]:
        """What is there. Each is a message of the protocol, and what came with it is closed."""
        heard: list[messages.Reply] = []
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while True:
                data, fds, _, _ = socket.recv_fds(self.sock, messages.MAX_PACKET_BYTES, MOST_FILES)
                for fd in fds:
                    os.close(fd)
                if not data:
                    break
                heard.append(messages.decode_reply(data))
        unasked = sum(isinstance(one, (messages.Failed, messages.Trial)) for one in heard)
        self.unasked += unasked
        self.answered += len(heard) - unasked
        self.refused += sum(isinstance(one, messages.ErrorReply) for one in heard)
        assert self.answered <= self.sent, "an answer that nothing asked for"
        return heard

    async def ask(self, request: messages.Request, fds: list[int]) -> messages.Reply:
        """As an honest library does."""
        self.send(messages.encode(request), fds)
        while True:
            for reply in self.hear():
                if not isinstance(reply, (messages.Failed, messages.Trial)):
                    return reply
            await asyncio.sleep(0.0005)

    async def end(self) -> None:
        self.sock.close()
        await self.served


def hello(rank: int, world: int) -> messages.Hello:
    return messages.Hello(abi=1, oldest=1, rank=rank, world_size=world, gpu=None, pid=os.getpid())


def request(rng: random.Random) -> messages.Request:
    """Mostly what a library would say at some time."""
    size, name = PAGE_BYTES * rng.choice((1, 1, 4)), rng.choice(("a", "b"))
    likely: list[messages.Request] = [
        hello(rng.randrange(3), rng.choice((1, 2, 3))),
        replace(hello(rng.randrange(3), 3), gpu=rng.choice(("GPU-1", "\0"))),  # nobody has one
        messages.Register(kind="memfd", bytes=size),
        messages.Offer(kind="posix_fd", bytes=size, name=name, note=""),
        messages.Unregister(name=name),
        messages.PeerMemory(rank=rng.randrange(3), name=name, wait_ms=rng.choice((0, 5))),
        messages.Tried(nvlink="none", reason="no peer access"),
        messages.Join(),
        messages.Join(),
        messages.Leave(),
    ]
    return rng.choice(likely)


def files(rng: random.Random, usual: int) -> list[int]:
    """New descriptors: mostly as many memfds as the request takes."""
    if rng.random() < 0.7:
        return [make_memfd(PAGE_BYTES)[0] for _ in range(usual)]
    made: list[int] = []
    for _ in range(rng.randrange(MOST_FILES + 1)):
        kind = rng.randrange(5)
        if kind == 0:
            made.append(os.memfd_create("short", os.MFD_CLOEXEC))
        elif kind == 1:
            with select.epoll() as epoll:
                made.append(os.dup(epoll.fileno()))
        elif kind == 2:
            made.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach())
        elif kind == 3:
            made.append(os.open("/", os.O_PATH))
        else:
            made.append(os.open("/dev/null", os.O_RDWR))
    return made


def packet(rng: random.Random) -> tuple[bytes, list[int]]:
    wanted = request(rng)
    usual = int(isinstance(wanted, (messages.Register, messages.Offer)))
    data = messages.encode(wanted)
    if rng.random() < 0.1:
        data = changed(rng, data, [data])
    if rng.random() < 0.01:
        data = bytes(messages.MAX_REQUEST_BYTES + 1)
    return data or b" ", files(rng, usual)


async def execute(rng: random.Random, runtime: Runtime, pod: Pod, thread: PodThread) -> Caller:
    """Up to three processes of one pod; what they counted together."""
    callers = [Caller(runtime, pod, thread) for _ in range(rng.choice((1, 2, 2, 3)))]
    world = rng.choice((1, 2, 2, 2, 3))
    for rank, caller in enumerate(callers):
        if rng.random() < 0.9:
            caller.send(messages.encode(hello(rank, world)), [])
    for _ in range(rng.randrange(1, LENGTH)):
        caller = rng.choice(callers)
        data, fds = packet(rng)
        caller.send(data, fds)
        for fd in fds:
            os.close(fd)
        if rng.random() < 0.5:
            await asyncio.sleep(rng.choice((0, 0.001, 0.01)))
        if rng.random() < 0.8:
            rng.choice(callers).hear()
    total = callers[0]
    for caller in callers:
        caller.hear()
        await caller.end()
    for other in callers[1:]:
        total.sent, total.answered = total.sent + other.sent, total.answered + other.answered
        total.refused += other.refused
    return total


async def honest(runtime: Runtime, pod: Pod, thread: PodThread) -> None:
    """A group of one rank forms in the same place."""
    caller = Caller(runtime, pod, thread)
    assert isinstance(await caller.ask(hello(0, 1), []), messages.HelloReply)
    fd, _ = make_memfd(PAGE_BYTES)
    register = messages.Register(kind="memfd", bytes=PAGE_BYTES)
    assert isinstance(await caller.ask(register, [fd]), messages.RegisterReply)
    os.close(fd)
    assert isinstance(await caller.ask(messages.Join(), []), messages.JoinReply)
    assert isinstance(await caller.ask(messages.Leave(), []), messages.LeaveReply)
    await caller.end()


async def nothing_stays(runtime: Runtime) -> None:
    while runtime.hub.living() or runtime.hub.ranks():
        await asyncio.sleep(0.001)
    assert runtime._quota.used_bytes == 0
    assert not runtime.cpus.ledger.taken()


def open_files() -> Counter[str]:
    """By what they are, as /proc names it."""
    gc.collect()  # of an ended session its proxies' descriptors are left, until it is collected
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one by which this is read
            found[os.readlink(f"/proc/self/fd/{fd}")] += 1
    return found


async def no_more_files(than: Counter[str], since: int, seed: int) -> None:
    more: Counter[str] = Counter()
    try:
        async with asyncio.timeout(END_S):
            while more := open_files() - than:  # the pod's thread closes the last ones
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"EPFABRIC_SEED={since} to {seed}: left open: {more}")


@pytest.mark.timeout(120 + 300 * TIMES)
async def test_nothing_that_a_pod_sends_breaks_its_agent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = answered = refused = 0
    caplog.set_level(logging.ERROR)
    pod = Pod("key", "ns", "p", "g", None, tmp_path)
    thread = PodThread()
    async with agent(tmp_path) as runtime:
        await honest(runtime, pod, thread)
        before, since = open_files(), seeds(COUNT)[0]
        for seed in seeds(COUNT):
            try:
                async with asyncio.timeout(END_S):
                    rng = random.Random(seed)
                    caller = await execute(rng, runtime, pod, thread)
                    await nothing_stays(runtime)
                    if rng.random() < 0.1:
                        await honest(runtime, pod, thread)
                        await nothing_stays(runtime)
            except (Exception, pytest.fail.Exception) as error:
                raise AssertionError(f"EPFABRIC_SEED={seed}") from error
            assert not caplog.records, f"EPFABRIC_SEED={seed}: {caplog.text}"
            if seed - since == FILES_EVERY - 1 or seed == seeds(COUNT)[-1]:
                await no_more_files(before, since, seed)
                since = seed + 1
            sent, answered = sent + caller.sent, answered + caller.answered
            refused += caller.refused
    if len(seeds(COUNT)) >= COUNT:  # few executions may have none
        assert answered - refused > COUNT / 2, "some requests are served"
    say(
        capsys,
        f"conversations: {len(seeds(COUNT)):,} executions, {sent:,} packets, {answered:,} answers, "
        f"{refused:,} of them refusals",
    )
