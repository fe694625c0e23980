"""Epochs that go on without a lost rank: commands to it complete, barriers exclude it."""

from __future__ import annotations

import select

import numpy as np
import pytest
from epfabric_agent import _native
from native.pod import Group, Node, Pod, barrier, drain, signal, until, write
from native.test_failure import event_of

FOUR_BY_TWO = [[0, 1], [2, 3], [4, 5], [6, 7]]


def mask(nodes: list[Node], ranks: list[int]) -> None:
    """What the agents do: every node masks, then every node excludes."""
    for node in nodes:
        node.core.mask_ranks(1, ranks)
    for node in nodes:
        node.core.exclude_ranks(1, ranks)


def exchange(pods: list[Pod], value: int) -> None:
    """Every rank writes a block to every one of them, and the barrier makes it readable."""
    before = {pod.rank: [pod.signal_value(p.rank, 1, 0) for p in pods] for pod in pods}
    for pod in pods:
        pod.regions[0][:64] = value + pod.rank
        for to in pods:
            pod.push(1, write(to.rank, 0, 4096 + 64 * pod.rank, 64, signal=0, advance=1))
        pod.push(1, drain(pod.head[1]))
    meet(pods)
    for pod in pods:
        for at, source in enumerate(pods):
            place = 4096 + 64 * source.rank
            assert np.all(pod.regions[0][place : place + 64] == value + source.rank)
            assert pod.signal_value(source.rank, 1, 0) == before[pod.rank][at] + 1


def meet(pods: list[Pod]) -> None:
    tickets = [(pod, pod.push(0, barrier())) for pod in pods]
    for pod, ticket in tickets:
        pod.wait(0, ticket)


def masked_commands(pod: Pod) -> int:
    return sum(ring["masked"] for ring in pod.session.counters()["rings"])


@pytest.mark.parametrize("inflight", [0, 200])
def test_six_ranks_go_on_when_an_agent_with_two_ranks_is_gone(inflight: int) -> None:
    with Group(FOUR_BY_TWO, mask=True) as group:
        exchange(group.pods, 1)
        rest = [group.nodes[i] for i in (0, 1, 3)]
        pods = [pod for node in rest for pod in node.pods]
        for pod in pods:
            for _ in range(inflight):
                pod.push(0, write(4, 0, 0, 65536))
        group.nodes[2].core.close()
        for pod in pods:
            pod.push(1, write(5, 0, 0, 16, signal=1, advance=1))
            # A write to a node that has just gone may complete; its drain cannot.
            pod.push(1, drain(pod.head[1]))
        for node in rest:
            said = lost_ranks(node)
            assert said <= {4, 5}
            assert 5 in said or inflight
        assert not any(pod.aborted() for pod in pods)
        assert all(pod.counter(1, "completed") < pod.head[1] for pod in pods)
        mask(rest, [4, 5])
        for pod in pods:
            pod.wait(0, pod.head[0] - 1)
            pod.wait(1, pod.head[1] - 1)
            assert pod.masked() == [4, 5]
            assert pod.counter(1, "refused") == 0
        exchange(pods, 100)
        for pod in pods:
            before = masked_commands(pod)
            pod.run(1, write(4, 0, 0, 64))
            assert masked_commands(pod) == before + 1
        exchange(pods, 150)
        until(lambda: all(p["inflight"] == 0 for pod in pods for p in proxies(pod)), "idle proxies")


def lost_ranks(node: Node) -> set[int]:
    """Once per rank and proxy, so as many as there are may come."""
    ready, _, _ = select.select([node.core.event_fd()], [], [], 30.0)
    assert ready, "no event within its bound"
    events = node.core.events()
    for event in events:
        assert event.kind == "lost"
        assert f"lost rank {event.rank}" in event.detail
    return {event.rank for event in events}


def proxies(pod: Pod) -> list[_native.ProxyCount]:
    return pod.session.counters()["proxies"]


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
@pytest.mark.parametrize("entered", [False, True])
def test_a_lost_rank_leaves_its_node_and_the_barrier_complete(lost: int, entered: bool) -> None:
    """0 leads all nodes, 2 its own: their proxy and memory stay. Lost in a barrier or before it."""
    with Group([[0, 1], [2, 3]], mask=True, proxies=2) as group:
        exchange(group.pods, 1)
        pods = [pod for pod in group.pods if pod.rank != lost]
        if entered:
            group.pods[lost].push(0, barrier())
        tickets = [(pod, pod.push(0, barrier())) for pod in pods[:-1]]
        late = pods[-1]
        for node in group.nodes:
            node.core.mask_ranks(1, [lost])
        assert group.pods[lost].aborted()
        assert all(pod.counter(0, "completed") <= ticket for pod, ticket in tickets)
        for node in group.nodes:
            node.core.exclude_ranks(1, [lost])
        group.pods[lost].session.close()
        # Rank 1 leads its rail for the others, from the first node: its memory stays until the end.
        assert (group.pods[lost].session.region_bytes == 0) == (lost == 3)
        late.run(0, barrier())
        for pod, ticket in tickets:
            pod.wait(0, ticket)
        for value in (50, 100):
            exchange(pods, value)
        assert not any(pod.aborted() for pod in pods)
        assert all(node.core.events() == [] for node in group.nodes)


def test_all_ranks_of_the_leaders_node_may_be_lost() -> None:
    with Group([[0, 1], [2], [3]], mask=True) as group:
        exchange(group.pods, 1)
        for rank in (1, 0):
            mask(group.nodes, [rank])
            group.pods[rank].session.close()
        rest = [group.pods[rank] for rank in (2, 3)]
        for value in (50, 100, 150):
            exchange(rest, value)
        assert all(pod.masked() == [0, 1] for pod in rest)


def test_ranks_that_do_not_come_are_absent_when_the_barrier_times_out() -> None:
    with Group([[0, 1], [2, 3]], barrier_timeout_ms=1000, mask=True) as group:
        exchange(group.pods, 1)
        tickets = [(group.pods[r], group.pods[r].push(0, barrier())) for r in (0, 3)]
        event = event_of(group.nodes[0])
        assert (event.kind, event.barrier) == ("barrier_timeout", 1)
        assert "barrier 1 of epoch 1 was not complete after 1000 ms" in event.detail
        assert [node.core.absent(1, event.barrier) for node in group.nodes] == [[1], [2]]
        group.pods[2].push(0, barrier())  # too late to be told, in time to be there
        until(lambda: group.nodes[1].core.absent(1, 1) == [], "rank 2 to enter")
        mask(group.nodes, [1])
        for pod, ticket in tickets:
            pod.wait(0, ticket)
        exchange([group.pods[rank] for rank in (0, 2, 3)], 100)


def test_a_pod_that_gives_up_is_reported_and_the_others_go_on() -> None:
    with Group([[0, 1]], provider="", mask=True) as group:
        np.frombuffer(group.pods[1].pod_map, dtype=np.uint64)[
            group.pods[1].at["pod_abort"] // 8
        ] = 1
        event = event_of(group.nodes[0])
        assert (event.kind, event.rank) == ("lost", 1)
        mask(group.nodes, [1])
        group.pods[0].run(0, barrier())
        group.pods[0].run(1, signal(1, 0, 1))
        assert masked_commands(group.pods[0]) == 1


def test_a_group_without_the_policy_still_fails() -> None:
    with Group([[0], [1]]) as group:
        group.nodes[1].core.close()
        group.pods[0].push(1, write(1, 0, 0, 16))
        assert event_of(group.nodes[0]).kind == "failed"
        assert group.pods[0].aborted()
