"""What a rank may do to its rings and its memory while other groups run on the same agents."""

from __future__ import annotations

import contextlib
import random
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from agent.abuse.seat import Seat, said
from agent.two_agents import TwoAgents
from native.hostile_slots import Target, stream, unpack
from native.pod import Pod, barrier, until

SIZE = 1 << 16


@contextmanager
def seats(pair: TwoAgents) -> Iterator[list[Seat]]:
    """Four ranks that have joined, two on each node."""
    with contextlib.ExitStack() as ends:
        ranks = [
            ends.enter_context(Seat(pair.socket("aabb"[rank]), rank, 4, SIZE)) for rank in range(4)
        ]
        for seat in ranks:
            seat.join()
        for seat in ranks:
            seat.joined()
        yield ranks


def test_a_barrier_that_nobody_else_enters_fails_its_group_by_name(pair: TwoAgents) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with seats(pair) as ranks:
        lone = ranks[rng.randrange(4)]
        slots = stream(np.random.default_rng(seed), 400, Target(4, lone.pod.signals, ((0, SIZE),)))
        slots[rng.randrange(400)] = barrier()
        for lo, hi in slots.tolist():
            lone.pod.push(0, (lo, hi))
        missing = " ".join(str(seat.rank) for seat in ranks if seat is not lone)
        reasons = [said(seat.sock)["reason"] for seat in ranks]
        for reason in reasons:
            assert "barrier 0 of epoch" in reason
            assert f"was not complete after 8000 ms; missing ranks: {missing}" in reason
            assert "of this node's NICs" in reason
        assert all(seat.pod.aborted() for seat in ranks)


def torn(rng: np.random.Generator, pod: Pod) -> None:
    """Overwrites what is read next in each ring, few halves with a wrong lap; never for rank 3."""
    tails = np.array([[pod.counter(ring, "tail")] for ring in range(pod.rings)])
    tickets = tails + np.arange(64)
    values = stream(rng, tickets.size, Target(3, 16, ((0, SIZE),)))
    values[unpack(values)["rank"] == 3, 0] = 0
    laps = (tickets & pod.depth == 0)[..., None] ^ (rng.random((*tickets.shape, 2)) < 0.03)
    slots = values.reshape(*tickets.shape, 2) | laps.astype(np.uint64) << np.uint64(63)
    pod.slots[np.arange(pod.rings)[:, None], tickets % pod.depth] = slots


def test_slots_that_change_while_they_are_read_break_nothing(pair: TwoAgents) -> None:
    """Two threads write torn slots and other laps into all rings, without looking at the tail."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    with seats(pair) as ranks:
        own = np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)
        ranks[3].memory[:] = own
        pod, stop = ranks[0].pod, threading.Event()

        def write(number: int) -> None:
            rng = np.random.default_rng((seed, number))
            while not stop.is_set():
                torn(rng, pod)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            for ring in range(pod.rings):
                laps = partial(lambda r: pod.counter(r, "tail") > pod.depth + 64, ring)
                until(laps, f"a lap of ring {ring}")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        for ring in range(pod.rings):
            refused = pod.counter(ring, "refused")
            assert 0 < refused < pod.counter(ring, "completed") <= pod.counter(ring, "tail")
        assert (ranks[3].memory == own).all()
        assert not any(seat.pod.aborted() for seat in ranks)
