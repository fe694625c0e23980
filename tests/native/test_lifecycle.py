"""Opening and closing again and again leaves nothing behind: descriptors, threads, mappings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from epfabric_agent import _native
from native.pod import Group, Node, barrier, until, write


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def mappings(kind: str) -> int:
    return len(re.findall(kind, Path("/proc/self/maps").read_text()))


def session_of(core: _native.Core, rank: int, world: int = 1) -> _native.Session:
    return core.open_session(
        group=1, rank=rank, world=world, rings=2, depth=16, signals=2, cpus=[-1, -1]
    )


def test_200_sessions_leave_no_descriptor_thread_or_mapping() -> None:
    core = _native.Core(address="127.0.1.1")
    session_of(core, 0).close()  # what libfabric keeps once is not a leak
    before = (threads(), descriptors(), mappings("memfd:epfabric"))
    for _ in range(200):
        node = Node(core, [0])
        node.open(1, 2, 16, 2, 2, 65536)
        node.pods[0].session.close()
        del node  # Python's own mappings of the segments hold descriptors too
    assert (threads(), descriptors(), mappings("memfd:epfabric")) == before
    core.close()


def test_epochs_over_tcp_leave_no_descriptor_or_thread() -> None:
    def run() -> None:
        with Group([[0, 1], [2]], proxies=2) as group:
            for pod in group.pods:
                pod.push(1, write((pod.rank + 1) % 3, 0, 0, 65536, signal=0, advance=1))
            tickets = [(pod, pod.push(0, barrier())) for pod in group.pods]
            for pod, ticket in tickets:
                pod.wait(0, ticket)

    run()
    run()
    before = (threads(), descriptors())
    for _ in range(10):
        run()
    assert (threads(), descriptors()) == before


def test_failed_openings_leave_nothing() -> None:
    core = _native.Core(address="127.0.1.1", connect_timeout_ms=200)
    peer = _native.Core(address="127.0.1.2")
    gone = session_of(peer, 1, 2)
    blob = gone.describe()
    peer.close()
    session_of(core, 0, 2).close()
    before = (threads(), descriptors())
    for _ in range(5):
        session = session_of(core, 0, 2)
        with pytest.raises(_native.NativeError):
            core.open_epoch(1, 1, [session], [_native.RemoteRank(1, 1, blob)], 0, [[0], [1]], 1000)
        session.close()
        del session
    with pytest.raises(_native.NativeError, match="CPU 1000"):
        core.open_session(group=1, rank=0, world=1, rings=2, depth=16, signals=2, cpus=[-1, 1000])
    assert (threads(), descriptors()) == before
    core.close()


@pytest.mark.parametrize(("provider", "lookouts"), [("tcp;ofi_rxm", 0), ("", 1)])
def test_a_core_that_is_dropped_without_close_ends_its_threads(
    provider: str, lookouts: int
) -> None:
    before = threads()
    core = _native.Core(address="127.0.1.1" if provider else "", provider=provider)
    session = session_of(core, 0)
    core.open_epoch(1, 1, [session], [], 0, [[0]], 1000)
    core.start_epoch(1)
    assert threads() == before + 2 + lookouts
    del core
    del session
    until(lambda: threads() == before, "the proxies to end", 10)


FEW_THREADS = """
import os, resource
from epfabric_agent import _native
core = _native.Core(address="", provider="")
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
os.setresuid(64321, 64321, 64321)
before = len(os.listdir("/proc/self/fd"))
try:
    core.open_session(group=1, rank=0, world=1, rings=1, depth=16, signals=1, cpus=[-1])
except _native.NativeError as error:
    assert "thread" in str(error), error
    assert len(os.listdir("/proc/self/fd")) == before
    print("refused")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="root only: RLIMIT_NPROC needs an account of its own")
def test_a_thread_limit_refuses_the_session_and_keeps_the_core() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FEW_THREADS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "refused\n", done.stderr


def test_large_writes_do_not_hold_up_the_heartbeat() -> None:
    """A turn of the loop beats, sees who left, and retires: it moves about one large write."""
    core = _native.Core(address="", provider="")
    node = Node(core, [0])
    size = 16 << 20
    node.open(1, 1, 64, 1, 1, size)
    pod = node.pods[0]
    core.open_epoch(1, 1, [pod.session], [], 0, [[0]], 1000)
    for _ in range(48):
        pod.push(0, write(0, 0, 0, size))
    before = pod.session.counters()["proxies"][0]["turns"]
    core.start_epoch(1)
    looks = 0
    while pod.counter(0, "completed") < 48:  # without a nap, in which the proxy would turn idly
        looks += 1
        assert looks < 50_000_000, "the writes do not end"
    assert pod.session.counters()["proxies"][0]["turns"] - before >= 48
    core.close()


def test_use_after_close_is_an_error() -> None:
    core = _native.Core(address="", provider="")
    session = session_of(core, 0)
    session.close()
    session.close()
    assert session.counters()["rings"][0]["taken"] == 0
    for call in (
        session.describe,
        lambda: session.register_memfd(0, 4096),
        lambda: session.drain(1),
    ):
        with pytest.raises(_native.NativeError, match="closed"):
            call()
    with pytest.raises(_native.NativeError, match="closed"):
        core.open_epoch(1, 1, [session], [], 0, [[0]], 1000)
    core.close()
    core.close()
    with pytest.raises(_native.NativeError, match="closed"):
        session_of(core, 0)


def test_counters_may_be_read_while_sessions_come_and_go() -> None:
    core = _native.Core(address="", provider="")
    stop = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(len(core.counters()))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(50):
        session = session_of(core, 0)
        core.open_epoch(1, 1, [session], [], 0, [[0]], 1000)
        core.start_epoch(1)
        core.close_epoch(1)
        session.close()
    stop.set()
    reader.join(30)
    assert not reader.is_alive()
    assert max(seen) <= 1
    core.close()


def test_the_heartbeat_goes_on_while_the_session_is_idle() -> None:
    core = _native.Core(address="", provider="")
    node = Node(core, [0])
    node.open(1, 1, 16, 1, 1, 0)
    pod = node.pods[0]

    def beat() -> int:
        return int(pod.agent[pod.at["heartbeat"] // 8])

    first = beat()
    until(lambda: beat() > first + 20, "20 heartbeats", 30)
    core.close()


def test_proxies_are_pinned_to_the_cpu_that_was_asked_for() -> None:
    core = _native.Core(address="", provider="")
    cpu = max(os.sched_getaffinity(0))
    before = set(os.listdir("/proc/self/task"))
    session = core.open_session(
        group=1, rank=0, world=1, rings=2, depth=16, signals=1, cpus=[cpu, -1]
    )
    new = set(os.listdir("/proc/self/task")) - before
    assert sorted(len(os.sched_getaffinity(int(task))) for task in new)[0] == 1
    assert any(os.sched_getaffinity(int(task)) == {cpu} for task in new)
    assert [proxy["cpu"] for proxy in session.counters()["proxies"]] == [cpu, -1]
    names = {Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in new}
    assert names == {"epf-proxy-0", "epf-proxy-1"}
    core.close()


def test_proxies_move_to_other_cpus_and_one_that_has_ended_is_left_alone() -> None:
    core = _native.Core(address="", provider="")
    allowed = os.sched_getaffinity(0)
    cpu = min(allowed)
    before = set(os.listdir("/proc/self/task"))
    session = core.open_session(
        group=1, rank=0, world=1, rings=2, depth=16, signals=1, cpus=[max(allowed), max(allowed)]
    )
    tasks = {}
    for task in set(os.listdir("/proc/self/task")) - before:
        tasks[Path(f"/proc/self/task/{task}/comm").read_text().strip()] = int(task)

    def places() -> list[set[int]]:
        return [os.sched_getaffinity(tasks[f"epf-proxy-{proxy}"]) for proxy in (0, 1)]

    assert places() == [{max(allowed)}] * 2
    session.move([cpu, -1])
    assert places() == [{cpu}, allowed]
    assert [proxy["cpu"] for proxy in session.counters()["proxies"]] == [cpu, -1]
    session.move([-1])
    assert places() == [allowed, allowed]
    with pytest.raises(_native.NativeError, match="CPU 1000"):
        session.move([cpu, 1000])
    assert places() == [{cpu}, allowed]
    session.close()
    session.move([cpu, cpu])
    core.close()


def test_an_epoch_and_its_sessions_may_be_ended_by_several_threads_at_once() -> None:
    for _ in range(40):
        core = _native.Core(address="", provider="")
        sessions = [session_of(core, rank, 3) for rank in range(3)]
        core.open_epoch(1, 1, sessions, [], 0, [[0, 1, 2]], 1000)
        core.start_epoch(1)
        enders = [threading.Thread(target=session.close) for session in sessions * 2]
        enders += [
            threading.Thread(target=core.close_epoch, args=(1,)),
            threading.Thread(target=core.fail_epoch, args=(1, "the test says so")),
        ]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join(20)
            assert not ender.is_alive()
        core.close()
