"""The stamps of barriers that the core keeps, and which barriers every node keeps as a trace."""

from __future__ import annotations

import itertools
import secrets
import time
from typing import TYPE_CHECKING

import pytest
from native.pod import Group, barrier

if TYPE_CHECKING:
    from epfabric_agent._native import BarrierTimes

NODES = [[0, 1], [2], [3]]
IN_ORDER = ("began_ns", "first_ns", "entered_ns", "posted_ns", "network_ns", "left_ns")
CLOCK_STEP_NS = 1_000_000


def meet(group: Group, times: int, last: int = 0, late_s: float = 0.0) -> None:
    for _ in range(times):
        pods = sorted(group.pods, key=lambda pod: pod.rank == last)
        tickets = [(pod, pod.push(0, barrier())) for pod in pods[:-1]]
        time.sleep(late_s)
        tickets.append((pods[-1], pods[-1].push(0, barrier())))
        for pod, ticket in tickets:
            pod.wait(0, ticket)


def stamps(group: Group, node: int, met: int, *, kept: bool) -> list[BarrierTimes]:
    """Of `met` barriers; the last rank to leave writes a moment after the others have gone."""
    end = time.monotonic() + 30
    while True:
        every = group.nodes[node].core.take_barriers(1, 0, 1 << 20, kept=False)
        if every["position"] == met or time.monotonic() > end:
            break
        time.sleep(0.001)
    taken = group.nodes[node].core.take_barriers(1, 0, 1 << 20, kept) if kept else every
    assert taken["overwritten"] == 0
    return taken["barriers"]


def test_every_barrier_leaves_its_stamps_on_every_node_in_order_and_in_wall_clock_time() -> None:
    uid = secrets.token_bytes(16)
    with Group(NODES, provider="tcp;ofi_rxm", uid=uid) as group:
        begin_ns = time.time_ns()
        meet(group, 20, last=3)
        by_node = [stamps(group, node, 20, kept=False) for node in range(len(NODES))]
        end_ns = time.time_ns()
    ids = [[one["trace_id"] for one in barriers] for barriers in by_node]
    assert ids[0] == ids[1] == ids[2]
    assert len(set(ids[0])) == 20
    for node, barriers in enumerate(by_node):
        assert [one["number"] for one in barriers] == list(range(20))
        for one in barriers:
            assert one["leads"] is (node == 0)
            assert one["kept"] is False
            times = [one[name] for name in IN_ORDER]  # type: ignore[literal-required]
            assert all(a <= b + CLOCK_STEP_NS for a, b in itertools.pairwise(times))
            assert begin_ns - CLOCK_STEP_NS <= times[0]
            assert times[-1] <= end_ns + CLOCK_STEP_NS


@pytest.mark.parametrize("straggler", range(4))
def test_a_slow_barrier_is_kept_on_every_node_and_its_last_rank_is_known(straggler: int) -> None:
    with Group(NODES, provider="tcp;ofi_rxm") as group:
        core = group.nodes[0].core
        core.keep_barriers(ratio=0.0, slow_ns=3_600 * 10**9)
        meet(group, 3)
        core.keep_barriers(ratio=0.0, slow_ns=20_000_000)
        meet(group, 1, last=straggler, late_s=0.1)
        core.keep_barriers(ratio=0.0, slow_ns=0)
        meet(group, 3)
        for node in range(len(NODES)):
            (one,) = stamps(group, node, 7, kept=True)
            assert (one["number"], one["kept"]) == (3, True)
            if node == 0:
                assert one["last_rank"] == straggler


def test_a_ratio_keeps_the_same_barriers_everywhere_and_1_keeps_all() -> None:
    with Group(NODES, provider="tcp;ofi_rxm") as group:
        group.nodes[0].core.keep_barriers(ratio=0.25, slow_ns=0)
        meet(group, 100)
        group.nodes[0].core.keep_barriers(ratio=1.0, slow_ns=0)
        meet(group, 10)
        by_node = [stamps(group, node, 110, kept=True) for node in range(len(NODES))]
    numbers = [[one["number"] for one in barriers] for barriers in by_node]
    assert numbers[0] == numbers[1] == numbers[2]
    assert numbers[0][-10:] == list(range(100, 110))
    by_ratio = [one for one in by_node[0] if one["number"] < 100]
    assert 1 <= len(by_ratio) <= 60
    for one in by_ratio:
        assert int.from_bytes(one["trace_id"][8:]) < 2**64 // 4


def test_the_ids_of_traces_follow_from_group_and_epoch() -> None:
    ids = {}
    for uid, epoch in ((bytes(16), 1), (bytes(15) + b"\1", 1), (bytes(16), 2)):
        with Group([[0]], provider="", uid=uid, epoch=epoch) as group:
            meet(group, 1)
            ids[uid, epoch] = stamps(group, 0, 1, kept=False)[0]["trace_id"]
    assert len(set(ids.values())) == 3
