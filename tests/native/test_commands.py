"""What a pod may push: refusals counted exactly by reason, laps, half-written commands."""

from __future__ import annotations

import pytest
from epfabric_agent import _native
from native.pod import (
    ADD,
    CAS,
    CAS_SWAP,
    LAP,
    REASONS,
    WRITE,
    Group,
    Node,
    Pod,
    barrier,
    drain,
    head,
    signal,
    until,
    write,
)

SIZE = 65536


def bad_commands(pod: Pod) -> dict[str, list[tuple[int, int]]]:
    """At least one command per reason; the drain names the ticket after its own."""
    far = SIZE // 16
    return {
        "bad-op": [(0, 0), (0, 1)],
        "reserved-flag": [(head(WRITE) | 1 << 59, 0)],
        "unused-field": [
            (head(ADD, 1) | 1 << 34, 5),
            (head(WRITE), 1 << 52),
            (signal(1, 0, 1)[0] | 1, 0),
            (barrier()[0], 1),
            (drain(0)[0] | 1 << 47, 0),
        ],
        "rank-out-of-group": [write(2, 0, 0, 16), signal(4095, 0, 1)],
        "source-out-of-region": [write(1, SIZE, 0, 16), write(1, SIZE - 16, 0, 32)],
        "destination-out-of-region": [
            write(1, 0, SIZE, 16),
            (head(WRITE, 1), far),
            (head(ADD, 1) | SIZE // 8, 5),
        ],
        "signal-out-of-range": [write(1, 0, 0, 16, signal=4, advance=1), signal(1, 2047, 1)],
        "no-advance": [signal(1, 0, 0)],
        "half-cas": [(head(CAS_SWAP), 0)],
    }


@pytest.mark.parametrize("nodes", [[[0, 1]], [[0], [1]]], ids=["loopback", "tcp"])
def test_every_refusal_is_counted_by_reason_and_told(nodes: list[list[int]]) -> None:
    with Group(nodes, provider="tcp;ofi_rxm" if len(nodes) > 1 else "", nbytes=SIZE) as group:
        pod = group.pods[0]
        expected: dict[str, int] = {}
        for reason, commands in bad_commands(pod).items():
            for command in commands:
                ticket = pod.push(1, command)
                pod.wait(1, ticket)
                expected[reason] = expected.get(reason, 0) + 1
                assert pod.counter(1, "last_refused_ticket") == ticket
                assert REASONS[pod.counter(1, "last_refused_reason")] == reason
        pod.run(1, drain(pod.head[1] + 1))
        expected["bad-drain"] = 1
        pod.run(1, barrier())  # not on ring 0
        expected["unsupported"] = 1
        pod.push(1, (head(CAS, 1) | SIZE // 8, 7))
        pod.run(1, (head(CAS_SWAP), 8))
        expected["destination-out-of-region"] += 1  # one command in two slots
        assert pod.counter(1, "last_refused_ticket") == pod.head[1] - 2
        counted = pod.session.counters()["rings"][1]
        assert counted["refused"] == expected
        twice = "destination-out-of-region"
        expected_slots = expected | {twice: expected[twice] + 1}
        assert counted["refused_slots"] == expected_slots
        assert counted["completed"] == sum(expected_slots.values())
        assert pod.counter(1, "refused") == sum(expected.values())
        pod.run(1, write(1, 0, 0, SIZE, signal=0, advance=9))  # the ring goes on
        until(lambda: group.pods[1].signal_value(0, 1, 0) == 9, "the signal")
        assert group.nodes[0].core.events() == []
        assert not pod.aborted()


def test_a_rank_that_left_is_refused_and_so_is_a_barrier() -> None:
    with Group([[0], [1], [2]], nbytes=SIZE) as group:
        a, b, _c = group.pods
        a.run(0, write(1, 0, 0, 16))
        for node in group.nodes:
            node.core.rank_left(1, 1)
        b.session.close()
        a.run(0, write(1, 0, 0, 16))
        a.run(0, signal(1, 0, 1))
        a.run(0, barrier())
        a.run(0, write(2, 0, 0, 16, signal=0, advance=1))
        assert a.session.counters()["rings"][0]["refused"] == {"rank-left": 3}
        assert all(node.core.events() == [] for node in group.nodes)


def test_rings_of_the_smallest_depth_run_for_many_laps() -> None:
    with Group([[0, 1]], provider="", depth=16, rings=3, nbytes=SIZE) as group:
        a, b = group.pods
        for _ in range(16 * 25 + 3):
            for ring in range(3):
                a.push(ring, signal(1, ring, 1))
        for ring in range(3):
            a.run(ring, drain(a.head[ring]))
            assert b.signal_value(0, ring, ring) == 16 * 25 + 3
            assert a.counter(ring, "tail") == a.head[ring]


def test_a_command_without_its_second_half_is_not_taken_until_it_comes() -> None:
    with Group([[0, 1]], provider="", nbytes=SIZE) as group:
        a, b = group.pods
        lo, hi = signal(1, 0, 5)
        a.slots[0, 0, 1] = hi | LAP
        a.push(1, signal(1, 0, 1))
        a.wait(1, 0)
        assert a.counter(0, "tail") == 0
        a.slots[0, 0, 0] = lo | LAP
        a.wait(0, 0)
        assert b.signal_value(0, 0, 0) == 5


def test_a_slot_rewritten_after_it_was_taken_changes_nothing() -> None:
    """The pod keeps changing slots of commands in flight; only what was checked is done."""
    with Group([[0], [1]], nbytes=1 << 20, rings=1, max_inflight=1) as group:
        a, b = group.pods
        b.regions[0][:] = 7
        a.regions[0][:] = 9
        for _ in range(20):
            ticket = a.push(0, write(1, 0, 0, 1 << 19))
            until(lambda: a.counter(0, "tail") > ticket, "the command to be taken")  # noqa: B023
            a.slots[0, ticket % a.depth, 1] |= (1 << 19) // 16  # another destination, same lap
            a.wait(0, ticket)
        assert (b.regions[0][: 1 << 19] == 9).all()
        assert (b.regions[0][1 << 19 :] == 7).all()


def test_commands_before_the_epoch_starts_wait_for_it() -> None:
    core = _native.Core(address="", provider="")
    node = Node(core, [0])
    node.open(1, 1, 16, 1, 1, SIZE)
    pod = node.pods[0]
    ticket = pod.push(0, signal(0, 0, 3))
    core.open_epoch(1, 1, [pod.session], [], 0, [[0]], 1000)
    assert pod.session.drain(50) is False
    assert pod.counter(0, "tail") == 0
    core.start_epoch(1)
    pod.wait(0, ticket)
    assert pod.session.drain(5000) is True
    assert pod.signal_value(0, 0, 0) == 3
    core.close()


def test_a_rank_with_two_regions_and_a_gap() -> None:
    core = _native.Core(address="", provider="")
    node = Node(core, [0])
    node.open(1, 1, 16, 1, 1, 4096)
    pod = node.pods[0]
    second = pod.register(8192)
    core.open_epoch(1, 1, [pod.session], [], 0, [[0]], 1000)
    core.start_epoch(1)
    pod.regions[0][:] = 5
    pod.run(0, write(0, 0, 65536 + 4096, 4096))
    pod.run(0, write(0, 0, 4096, 16))  # the gap
    assert (second[4096:] == 5).all()
    assert (second[:4096] == 0).all()
    assert pod.session.counters()["rings"][0]["refused"] == {"destination-out-of-region": 1}
    core.close()
