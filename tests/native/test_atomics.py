"""Atomics while ranks are lost: every one completes, with its old value or as masked."""

from __future__ import annotations

import secrets
from random import Random

import numpy as np
import pytest
from native.pod import Group, Pod, add, cas, until

WORD = 8 * 77


def push_some(random: Random, pod: Pod, owner: int, count: int) -> list[tuple[int, int]]:
    """(ticket, slots) of ADDs of 1 and of CAS that change nothing."""
    pushed = []
    for _ in range(count):
        if random.random() < 0.7:
            pushed.append((pod.push(0, add(owner, WORD, 1)), 1))
        else:
            first, second = cas(owner, WORD, 1 << 63, 5)
            pushed.append((pod.push(0, first), 2))
            pod.push(0, second)
    return pushed


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["own-rank", "same-node", "other-node"])
def test_atomics_on_a_rank_that_is_masked_in_the_middle_all_complete(lost: int) -> None:
    """Node 0 masks first, so that answers of node 1 still come; then node 1 does."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    random = Random(seed)
    with Group([[0, 1], [2]], mask=True, depth=256) as group:
        pod = group.pods[0]
        owner = 2 if lost == 0 else lost
        pushed = push_some(random, pod, owner, 60)
        until(lambda: pod.counter(0, "completed") >= random.randrange(40), "some")
        for node in group.nodes:
            node.core.mask_ranks(1, [lost])
        if lost:
            pushed += push_some(random, pod, owner, 20)
            pod.wait(0, pod.head[0] - 1)
        else:
            pod.session.close()  # waits for all that was taken
        (ring, _) = pod.session.counters()["rings"]
        assert ring["refused"] == {}
        assert ring["depth"] == 0
        done = [(t, slots, pod.result(0, t)) for t, slots in pushed if t < ring["taken"]]
        adds = sum(1 for _, slots, old in done if slots == 1 and old is not None)
        swaps = sum(1 for _, slots, old in done if slots == 2 and old is not None)
        assert (ring["ops"]["add"], ring["ops"]["cas"]) == (adds, swaps)
        assert ring["masked"] == len(done) - adds - swaps
        assert ring["masked_slots"] + adds + 2 * swaps == sum(slots for _, slots, _ in done)
        held = int(group.pods[owner].regions[0].view(np.uint64)[WORD // 8])
        olds = [old for _, _, old in done if old is not None]
        assert olds == sorted(olds)
        assert held >= adds
        if lost:
            assert ring["masked"] >= 20
            other = group.pods[3 - lost]
            ticket = pod.push(1, add(other.rank, WORD, 1 << 63))
            pod.wait(1, ticket)
            assert pod.result(1, ticket) == 0
        assert all(node.core.events() == [] for node in group.nodes)


def test_atomics_to_a_rank_that_leaves_are_answered_or_refused() -> None:
    """Not sent, or sent and not answered: each ends once the agent knows that the rank left."""
    with Group([[0], [1]], nbytes=65536, stall_timeout_ms=60000) as group:
        a, b = group.pods
        a.run(0, add(1, WORD, 3))
        tickets = [a.push(0, add(1, WORD, 3)) for _ in range(40)]
        for node in group.nodes:
            node.core.rank_left(1, 1)
        b.session.close()
        tickets.append(a.push(0, add(1, WORD, 3)))
        a.wait(0, tickets[-1])
        answered = sum(a.result(0, ticket) is not None for ticket in tickets)
        (ring, _) = a.session.counters()["rings"]
        assert ring["ops"]["add"] == 1 + answered
        assert ring["refused"] == {"rank-left": len(tickets) - answered}
        assert a.result(0, tickets[-1]) is None
        assert group.nodes[0].core.events() == []
