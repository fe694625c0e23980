"""A peer that fails, hangs or lies: every wait ends within its bound and the reason names who."""

from __future__ import annotations

import contextlib
import os
import select
import struct
from pathlib import Path

import numpy as np
import pytest
from epfabric_agent import _native
from native.pod import Group, Node, barrier, drain, signal, until, write

SIZE = 1 << 20


def wait_for(fds: list[int], limit_s: float = 30.0) -> int:
    """The one that is readable first."""
    ready, _, _ = select.select(fds, [], [], limit_s)
    assert ready, "no event within its bound"
    return int(ready[0])


def event_of(node: Node, limit_s: float = 30.0) -> _native.Event:
    wait_for([node.core.event_fd()], limit_s)
    events = node.core.events()
    assert len(events) == 1
    return events[0]


@pytest.mark.parametrize("inflight", [0, 200])
def test_a_closed_peer_fails_the_epoch_with_its_rank(inflight: int) -> None:
    with Group([[0, 1], [2], [3]]) as group:
        a, other, _lost, _third = group.pods
        for _ in range(inflight):
            a.push(0, write(2, 0, 0, 65536))
        group.nodes[1].core.close()
        a.push(1, write(2, 0, 0, 16))
        last = a.push(1, drain(a.head[1]))
        event = event_of(group.nodes[0])
        assert (event.kind, event.group, event.rank, event.ranks) == ("failed", 1, 2, [2])
        assert "rank 0 lost rank 2" in event.detail
        assert group.nodes[0].core.failure(1) == event.detail
        assert a.aborted()
        assert other.aborted()  # the other rank of the node ends its waits too
        assert a.counter(1, "completed") <= last
        group.nodes[0].core.fail_epoch(1, "a peer is gone")
        assert group.nodes[0].core.events() == []


@pytest.mark.parametrize(
    ("here", "missing"), [((0, 2), [1, 3]), ((0,), [1, 2, 3]), ((3,), [0, 1, 2])]
)
def test_missing_ranks_end_the_barrier_and_are_all_named(
    here: tuple[int, ...], missing: list[int]
) -> None:
    with Group([[0, 1], [2, 3]], barrier_timeout_ms=1000) as group:
        for rank in here:
            group.pods[rank].push(0, barrier())
        first = wait_for([node.core.event_fd() for node in group.nodes])
        assert first == group.nodes[0].core.event_fd(), "the leader knows most"
        event = event_of(group.nodes[0])
        assert event.kind == "barrier_timeout"
        assert event.ranks == missing
        assert event.rank == missing[0]
        assert f"missing ranks: {' '.join(map(str, missing))}" in event.detail
        assert "1000 ms" in event.detail
        assert all(pod.aborted() for pod in group.nodes[0].pods)


def test_a_rank_with_unfinished_work_does_not_enter() -> None:
    """Ring 1 holds half a command: its rank is not quiet, so the barrier may not let others go."""
    with Group([[0, 1]], provider="", barrier_timeout_ms=500) as group:
        a, b = group.pods
        a.push(0, barrier())
        ticket = b.head[1]
        b.push(1, (4 << 60, 0))  # first slot of a CAS
        b.push(0, barrier())
        event = event_of(group.nodes[0])
        assert event.ranks == [1]
        assert b.counter(1, "tail") == ticket


def test_an_unreachable_peer_is_an_error_that_names_it() -> None:
    cores = [_native.Core(address=f"127.0.1.{i}", connect_timeout_ms=1500) for i in (1, 2)]
    sessions = [
        core.open_session(group=4, rank=i, world=2, rings=1, depth=16, signals=1, cpus=[-1])
        for i, core in enumerate(cores)
    ]
    blob = sessions[1].describe()
    cores[1].close()
    with pytest.raises(_native.NativeError, match="rank 1"):
        cores[0].open_epoch(
            4, 1, [sessions[0]], [_native.RemoteRank(1, 1, blob)], 0, [[0], [1]], 1000
        )
    assert cores[0].failure(4) == ""  # nothing is left of it
    sessions[0].close()
    cores[0].close()


def test_a_write_with_a_forged_key_is_refused_by_the_target() -> None:
    """The keys are random; whoever reaches the listener without one changes nothing."""
    with Group([[0]], nbytes=SIZE) as lone:
        blob = bytearray(lone.pods[0].session.describe())
        key = struct.unpack_from("<Q", blob, len(blob) - 16)[0]
        assert key > 1 << 32  # not a counter
        core = _native.Core(address="127.0.1.9", connect_timeout_ms=3000)
        session = core.open_session(
            group=1, rank=1, world=2, rings=2, depth=64, signals=4, cpus=[-1]
        )
        forged = bytearray(blob)
        struct.pack_into("<I", forged, 12, 2)  # world
        mailbox = len(blob) - 16 - 16
        struct.pack_into("<Q", forged, mailbox, struct.unpack_from("<Q", blob, mailbox)[0] ^ 1)
        with pytest.raises(_native.NativeError, match="rank 0"):
            core.open_epoch(
                1, 1, [session], [_native.RemoteRank(0, 0, bytes(forged))], 0, [[0], [1]], 1000
            )
        core.close()


@pytest.mark.parametrize(
    ("nodes", "leader", "message"),
    [
        ([[0]], 0, "on no node"),
        ([[0], [1], [1]], 0, "two nodes"),
        ([[0], [1], []], 0, "no ranks"),
        ([[0], [1, 2]], 0, "world size"),
        ([[0, 1]], 0, "1 sessions of the group"),
        ([[0], [1]], 2, "leader"),
        ([[1], [0]], 0, "two nodes"),
    ],
)
def test_an_epoch_that_does_not_fit_is_refused(
    nodes: list[list[int]], leader: int, message: str
) -> None:
    cores = [_native.Core(address=f"127.0.1.{i}") for i in (1, 2)]
    sessions = [
        core.open_session(group=1, rank=i, world=2, rings=1, depth=16, signals=1, cpus=[-1])
        for i, core in enumerate(cores)
    ]
    remote = [_native.RemoteRank(1, 1, sessions[1].describe())]
    with pytest.raises(_native.NativeError, match=message):
        cores[0].open_epoch(1, 1, [sessions[0]], remote, leader, nodes, 1000)
    cores[0].open_epoch(
        1, 1, [sessions[0]], remote, 0, [[0], [1]], 1000
    )  # the session is still good
    for core in cores:
        core.close()


def test_descriptions_of_another_rank_or_with_other_settings_are_refused() -> None:
    core = _native.Core(address="127.0.1.1")
    peer = _native.Core(address="127.0.1.2")

    def open_on(where: _native.Core, rank: int, rings: int) -> _native.Session:
        return where.open_session(
            group=1, rank=rank, world=3, rings=rings, depth=16, signals=1, cpus=[-1]
        )

    own = open_on(core, 0, 2)
    one, two, odd = open_on(peer, 1, 2), open_on(peer, 2, 2), open_on(peer, 2, 1)

    def join(blob1: bytes, blob2: bytes) -> None:
        remote = [_native.RemoteRank(1, 1, blob1), _native.RemoteRank(2, 1, blob2)]
        core.open_epoch(1, 1, [own], remote, 0, [[0], [1, 2]], 1000)

    with pytest.raises(_native.NativeError, match="rank 1 is rank 2's"):
        join(two.describe(), two.describe())
    with pytest.raises(_native.NativeError, match="rank 2 has another world size"):
        join(one.describe(), odd.describe())
    with pytest.raises(_native.NativeError, match="cut short"):
        join(one.describe()[:-3], two.describe())
    with pytest.raises(_native.NativeError, match="is none"):
        join(b"????" + one.describe()[4:], two.describe())
    newer = one.describe()[:4] + (99).to_bytes(4, "little") + one.describe()[8:]
    with pytest.raises(_native.NativeError, match=r"of version 99, this one of version \d+:"):
        join(newer, two.describe())
    lone = _native.Core(address="", provider="")
    alone = open_on(lone, 0, 2)
    with pytest.raises(_native.NativeError, match="no network transport"):
        lone.open_epoch(
            1,
            1,
            [alone],
            [_native.RemoteRank(1, 1, one.describe()), _native.RemoteRank(2, 1, two.describe())],
            0,
            [[0], [1, 2]],
            1000,
        )
    for each in (core, peer, lone):
        each.close()


@pytest.mark.parametrize("changed", [{"signals": 64}, {"rings": 4}])
def test_local_sessions_of_unequal_settings_are_refused(changed: dict[str, int]) -> None:
    """The fabric's settings may change between two hellos; each would write past the other."""
    core = _native.Core(address="", provider="")
    shape = {"group": 1, "world": 2, "rings": 2, "depth": 16, "signals": 1, "cpus": [-1]}
    sessions = [
        core.open_session(**{**shape, "rank": rank, **(changed if rank else {})})  # type: ignore[arg-type]
        for rank in (0, 1)
    ]
    with pytest.raises(_native.NativeError, match="rank 1 has another world size, or another"):
        core.open_epoch(1, 1, sessions, [], 0, [[0, 1]], 1000)
    core.close()


def test_a_pod_that_gives_up_but_lives_on_ends_the_epoch() -> None:
    with Group([[0, 1]], provider="") as group:
        np.frombuffer(group.pods[1].pod_map, dtype=np.uint64)[
            group.pods[1].at["pod_abort"] // 8
        ] = 1
        event = event_of(group.nodes[0])
        assert (event.kind, event.rank) == ("failed", 1)
        assert "rank 1 was lost: its pod gave the epoch up" in event.detail
        assert group.pods[0].aborted()


def test_two_groups_on_one_core_fail_apart() -> None:
    core = _native.Core(address="", provider="")
    nodes = []
    for group in (1, 2):
        session = core.open_session(
            group=group, rank=0, world=1, rings=1, depth=16, signals=1, cpus=[-1]
        )
        core.open_epoch(group, 1, [session], [], 0, [[0]], 1000)
        core.start_epoch(group)
        nodes.append(session)
    core.fail_epoch(1, "the test says so")
    assert [group for group in (1, 2) if core.failure(group)] == []
    with pytest.raises(_native.NativeError, match="no open epoch"):
        core.start_epoch(1)
    assert nodes[1].drain(1000)
    with pytest.raises(_native.NativeError, match="open a new session"):
        core.open_epoch(1, 2, [nodes[0]], [], 0, [[0]], 1000)
    core.close()


def test_a_lost_group_opens_again_with_new_sessions_and_the_next_epoch() -> None:
    for epoch in (1, 2, 3):
        with Group([[0], [1]], epoch=epoch) as group:
            a, b = group.pods
            a.run(0, signal(1, 0, epoch))
            a.run(0, drain(a.head[0]))
            until(lambda: b.signal_value(0, 0, 0) == epoch, "the signal")  # noqa: B023
            for node in group.nodes:
                node.core.fail_epoch(1, "round over")
            assert a.aborted()
            assert b.aborted()


def test_a_record_of_another_epoch_fails_the_group_and_moves_no_signal() -> None:
    cores = [_native.Core(address=f"127.0.1.{i}") for i in (1, 2)]
    nodes = [Node(core, [rank]) for rank, core in enumerate(cores)]
    for node in nodes:
        node.open(2, 1, 16, 1, 1, 4096)
    pods = [node.pods[0] for node in nodes]
    for rank, core in enumerate(cores):
        other = _native.RemoteRank(1 - rank, 1 - rank, pods[1 - rank].session.describe())
        core.open_epoch(1, 7 + rank, [pods[rank].session], [other], 0, [[0], [1]], 1000)
        core.start_epoch(1)
    pods[0].push(0, signal(1, 0, 5))
    event = event_of(nodes[1])
    assert (event.kind, event.rank) == ("failed", 0)
    assert "bad record: another epoch" in event.detail
    assert pods[1].signal_value(0, 0, 0) == 0
    for core in cores:
        core.close()


def test_endpoints_listen_on_the_agents_address_only() -> None:
    core = _native.Core(address="127.0.1.5")
    session = core.open_session(
        group=1, rank=0, world=2, rings=2, depth=16, signals=1, cpus=[-1, -1]
    )
    own = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/self/fd/{fd}"))
    listening = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                listening.append(fields[1].split(":")[0])
    assert listening == ["0501007F"] * 2
    assert len(set(session.endpoints())) == 2
    core.close()
