"""Conversations that are cut off at their worst moment give everything back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from epfabric_agent import threads
from epfabric_agent.groups.hub import NoReporter
from epfabric_agent.manifest.mode import group_pod
from epfabric_agent.manifest.read import read
from epfabric_agent.peers.client import Agent, PeerClient
from epfabric_agent.pki import authority
from epfabric_agent.pki.identity import NodeIdentity
from epfabric_agent.runtime import Runtime
from epfabric_agent.topology.machine import Machine

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 20.0


async def nobody(client: PeerClient, group: str) -> Agent | None:
    return None


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Runtime, Path]]:
    """A runtime in this process with one group; its socket."""
    identity = NodeIdentity("a", "moe", "127.0.6.2")
    authority.make_authority(folder / "pki", 1)
    authority.issue(folder / "pki", identity, 1, folder / "pki")
    own = authority.load(folder / "pki", "a")
    runtime = Runtime(identity, lambda: own, NoReporter(), nobody, Machine(), lambda: None)
    pod = group_pod("moe", folder / "sockets")
    pod.directory.mkdir(parents=True)
    try:
        await runtime.listen(0)
        await runtime.apply(read(ROOT / "examples/two-agents/fabric.yaml").settings)
        await runtime.sockets.follow([pod])
        yield runtime, pod.directory / "agent.sock"
    finally:
        await asyncio.wait_for(runtime.close(), WAIT_S)


def hello(rank: int = 0, world: int = 2) -> bytes:
    fields: dict[str, Any] = {"type": "hello", "abi": 1, "rank": rank, "world_size": world}
    return json.dumps(fields | {"gpu": None, "pid": 1}).encode()


def connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    sock.connect(str(path))
    return sock


async def until(check: Callable[[], bool], what: str) -> None:
    """AssertionError that says what did not come true in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + WAIT_S
    while not check():
        assert loop.time() < end, f"not within {WAIT_S:g} s: {what}"
        await asyncio.sleep(0.01)


async def ask(sock: socket.socket, packet: bytes) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, packet)
    answer: dict[str, Any] = json.loads(await asyncio.wait_for(loop.sock_recv(sock, 65536), WAIT_S))
    return answer


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def proxies() -> int:
    """Threads of the core that serve a session: Python does not count them."""
    found = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found += Path(f"/proc/self/task/{task}/comm").read_text().startswith("epf-proxy")
    return found


async def test_a_socket_that_goes_while_a_hello_is_served_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (runtime, path):
        with connected(path) as sock:
            assert (await ask(sock, hello()))["ok"]
            assert proxies() > 0
        await until(lambda: not runtime.sessions, "the first session to end")
        await until(lambda: not runtime.hub.parts, "the part to go")
        before = files()
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        rng = random.Random(seed)
        for _ in range(20):
            with connected(path) as sock:
                sock.send(hello())
                for _ in range(rng.randrange(12)):
                    await asyncio.sleep(0)
                    if rng.random() < 0.2:
                        await asyncio.sleep(0.002)
                await asyncio.wait_for(runtime.sockets.follow([]), WAIT_S)
            await until(lambda: not runtime.sessions, "the session to end")
            await runtime.sockets.follow([group_pod("moe", path.parent.parent)])
        await until(lambda: runtime._quota.used_bytes == 0, "memory to be given back")
        assert not runtime.cpus.ledger.taken()
        assert runtime.core.current is not None
        assert runtime.core.current.counters() == []
        await until(lambda: files() <= before, "files to be closed")
        assert proxies() == 0
        with connected(path) as sock:
            assert (await ask(sock, hello()))["ok"]


async def test_sessions_of_before_and_after_a_change_of_settings_share_no_cpu(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (runtime, path):
        with connected(path) as first, connected(path) as second:
            assert (await ask(first, hello()))["ok"]
            await runtime.apply(read(ROOT / "examples/two-agents/fabric.yaml").settings, "cordoned")
            assert (await ask(second, hello(rank=1)))["ok"]
            ledger, usable = runtime.cpus.ledger, runtime.cpus.usable.usable
            assert len(ledger.taken()) == min(2, len(usable))
            (part,) = runtime.hub.parts.values()
            assert len({local.sample for local in part.ranks.values()}) == 2
        await until(lambda: not runtime.sessions, "the sessions to end")
        assert not ledger.taken()


async def test_an_agent_without_files_pauses_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as (_, path):
        sock = connected(path)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = connected(path)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await asyncio.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert sum("cannot accept" in record.message for record in caplog.records) == 1
        with sock, waiting:
            assert (await ask(waiting, hello()))["ok"]


async def test_an_agent_that_serves_nothing_turns_pods_away(tmp_path: Path) -> None:
    async with serving(tmp_path) as (runtime, path):
        services, runtime._services = runtime._services, None
        with connected(path) as sock:
            loop = asyncio.get_running_loop()
            assert await asyncio.wait_for(loop.sock_recv(sock, 100), WAIT_S) == b""
        runtime._services = services


async def test_gpu_memory_is_refused_where_no_nic_moves_it_and_takes_no_room(
    tmp_path: Path,
) -> None:
    """Over tcp a CPU would have to read it."""
    async with serving(tmp_path) as (runtime, path):
        loop = asyncio.get_running_loop()
        with connected(path) as sock:
            assert (await ask(sock, hello(world=1)))["ok"]
            held, before = runtime._quota.used_bytes, files()
            fd = os.memfd_create("gpu")
            os.truncate(fd, 65536)
            socket.send_fds(sock, [b'{"type":"register","kind":"dmabuf","bytes":65536}'], [fd])
            os.close(fd)
            said = json.loads(await asyncio.wait_for(loop.sock_recv(sock, 65536), WAIT_S))["error"]
            assert said["code"] == "bad-dmabuf"
            assert "data moves by libfabric here: register host memory" in said["message"]
            assert (await ask(sock, b'{"type":"register","kind":"dmabuf","bytes":65536}'))["error"][
                "message"
            ] == "register carries one dmabuf, not 0 files"
            assert runtime._quota.used_bytes == held
            # Descriptors of a packet are closed after it was answered.
            await until(lambda: files() <= before, "descriptors to be closed")
            assert (await ask(sock, b'{"type":"join"}'))["ok"]


async def test_requests_out_of_order_are_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as (runtime, path):
        before = files()
        register = b'{"type":"register","kind":"memfd","bytes":65536}'
        join, leave = b'{"type":"join"}', b'{"type":"leave"}'

        async def code(sock: socket.socket, packet: bytes) -> str:
            answer = await ask(sock, packet)
            return str(answer["error"]["code"]) if not answer["ok"] else "ok"

        with connected(path) as sock:
            assert await code(sock, join) == "bad-state"
            assert await code(sock, register) == "bad-state"
            assert await code(sock, hello(rank=5, world=2)) in ("rank", "bad-request")
            assert await code(sock, hello(world=1)) == "ok"
            assert await code(sock, hello(world=1)) == "bad-state"
            assert await code(sock, register) == "bad-memfd"
            assert await code(sock, b"[" * 60000) == "bad-request"
            many = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
            socket.send_fds(sock, [register], many)
            for fd in many:
                os.close(fd)
            loop = asyncio.get_running_loop()
            said = json.loads(await asyncio.wait_for(loop.sock_recv(sock, 65536), WAIT_S))
            assert said["error"]["code"] == "bad-request"
            assert await code(sock, join) == "ok"
            assert await code(sock, join) == "bad-state"
            assert await code(sock, register) == "bad-state"
            sock.send(leave)
            sock.send(leave)
            answer = json.loads(await asyncio.wait_for(loop.sock_recv(sock, 65536), WAIT_S))
            codes = [answer.get("error", {}).get("code", "ok")]
            if codes == ["bad-state"]:  # the second one was read while the first was served
                answer = json.loads(await asyncio.wait_for(loop.sock_recv(sock, 65536), WAIT_S))
                codes.append(answer.get("error", {}).get("code", "ok"))
            assert codes[-1] == "ok"
        await until(lambda: not runtime.hub.parts, "the part to go")
        await until(lambda: files() <= before, "files to be closed")


async def test_pods_that_never_read_end_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (runtime, path):
        before = files()
        deaf = [connected(path) for _ in range(20)]
        for sock in deaf:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                for _ in range(500):
                    sock.send(b'{"type":"leave"}')
        with connected(path) as sock:
            assert (await ask(sock, hello()))["ok"]
        for sock in deaf:
            sock.close()
        await until(lambda: not runtime.hub.parts, "the part to go")
        await until(lambda: files() <= before, "files to be closed")


async def test_a_hello_is_served_though_the_core_is_replaced_meanwhile(tmp_path: Path) -> None:
    settings = read(ROOT / "examples/two-agents/fabric.yaml").settings
    wanted = [replace(settings, proxies=replace(settings.proxies, drain_batch=n)) for n in (8, 16)]
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    async with serving(tmp_path) as (runtime, path):
        cores = set()
        for number in range(24):
            with connected(path) as sock:
                change = asyncio.create_task(runtime.apply(wanted[number % 2]))
                for _ in range(rng.randrange(20)):
                    await asyncio.sleep(0)
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.uniform(0, 0.02))
                answer = await ask(sock, hello(world=1))
                assert answer["ok"], answer
                assert (await ask(sock, b'{"type":"join"}'))["ok"]
                await asyncio.wait_for(change, WAIT_S)
            cores.add(id(runtime.core.current))
            await until(lambda: not runtime.hub.parts, "the part to go")
            await runtime.apply(wanted[number % 2])
        assert len(cores) > 1, "no core was replaced"


async def test_slow_pods_do_not_hold_up_the_end_of_another_ones_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as (runtime, path):
        over = threading.Event()
        with connected(path) as sock:
            assert (await ask(sock, hello()))["ok"]
            slow = [asyncio.create_task(threads.serving(over.wait, WAIT_S)) for _ in range(64)]
            others = [asyncio.create_task(asyncio.to_thread(over.wait, WAIT_S)) for _ in range(64)]
            await asyncio.sleep(0.1)
        try:
            await until(lambda: not runtime.sessions, "the session to end")
            assert not over.is_set()
            assert not any(task.done() for task in slow)
        finally:
            over.set()
            await asyncio.wait([*slow, *others], timeout=WAIT_S)


async def test_a_socket_made_anew_is_noticed_though_inodes_come_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as (runtime, path):
        (bound,) = runtime.sockets._sockets.values()
        assert not bound.stale
        for _ in range(50):
            path.unlink()
            other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                other.bind(str(path))
                assert bound.stale
        await runtime.sockets.follow([group_pod("moe", path.parent.parent)])
        with connected(path) as sock:
            assert (await ask(sock, hello()))["ok"]
