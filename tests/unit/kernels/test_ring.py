"""Rings of a session: what is published, when, and what is refused before it gets that far."""

from __future__ import annotations

import random
import threading

import epfabric
import numpy as np
import pytest
from epfabric import command, layout

from .scripted_agent import ScriptedAgent

SEED = random.SystemRandom().randrange(1 << 32)
LAP = command.LAP_BIT


def connect(agent: ScriptedAgent, timeout_s: float = 20.0) -> epfabric.Session:
    return epfabric.connect(agent.path, rank=0, world_size=2, timeout_s=timeout_s)


def slot(agent: ScriptedAgent, ring: int, ticket: int) -> tuple[int, int]:
    at = agent.layout.slots + (ring * 16 + ticket % 16) * 16
    return agent.pod.get(at), agent.pod.get(at + 8)


def test_a_ring_whose_proxy_takes_nothing_is_a_timeout(agent: ScriptedAgent) -> None:
    session = connect(agent, timeout_s=0.3)
    ring = session.ring(0)
    for _ in range(24):  # 16 slots and one open batch of 8
        ring.write(1, 0, 0, 16)
    with pytest.raises(epfabric.Timeout, match="takes no commands"):
        ring.write(1, 0, 0, 16)
    assert ring.next_ticket == 24
    agent.agent.put(agent.layout.counters + layout.RING_TAIL, 16)
    assert ring.write(1, 0, 0, 16) == 24, "it goes on when slots become free"
    session.abort()


def test_refused_commands_are_told_once(agent: ScriptedAgent) -> None:
    session = connect(agent)
    ring = session.ring(0)
    ticket = ring.signal(1, 0)
    base = agent.layout.counters
    agent.agent.put(base + layout.RING_REFUSED_TICKET, ticket)
    agent.agent.put(base + layout.RING_REFUSED_REASON, 4)
    agent.agent.put(base + layout.RING_REFUSED, 1)
    agent.agent.put(base + layout.RING_COMPLETED, 1)
    with pytest.raises(epfabric.CommandRefused, match="rank-out-of-group") as caught:
        ring.wait(ticket)
    assert (caught.value.ticket, caught.value.count) == (ticket, 1)
    ring.wait(ticket)
    session.abort()


def test_unknown_rings_words_and_tickets_are_named(agent: ScriptedAgent) -> None:
    session = connect(agent)
    with pytest.raises(ValueError, match="2 rings"):
        session.ring(2)
    with pytest.raises(ValueError, match="2 ranks"):
        session.signal_value(2, 0, 0)
    with pytest.raises(ValueError, match="not given out"):
        session.ring(0).wait(0)
    session.abort()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((4096, 0, 0, 16), "rank"),
        ((-1, 0, 0, 16), "rank"),
        ((0, 1 << 36, 0, 16), "source"),
        ((0, 0, 1 << 36, 16), "destination"),
        ((0, 0, 0, 0), "units"),
        ((0, 0, 0, (16 << 20) + 16), "units"),
        ((0, 8, 0, 16), "multiples of 16"),
        ((0, 0, 0, 16, 3), "signal and advance"),
        ((0, 0, 0, 16, None, 3), "signal and advance"),
        ((0, 0, 0, 16, 2048, 1), "signal"),
        ((0, 0, 0, 16, 0, 1 << 15), "advance"),
    ],
)
def test_what_does_not_fit_a_command_is_named(
    agent: ScriptedAgent, arguments: tuple[int, ...], names: str
) -> None:
    session = connect(agent)
    with pytest.raises(ValueError, match=names):
        session.ring(0).write(*arguments)
    assert session.ring(0).next_ticket == 0
    session.abort()


def test_a_batch_is_published_when_full_or_flushed_and_not_before(agent: ScriptedAgent) -> None:
    session = connect(agent)
    ring = session.ring(1)
    for ticket in range(7):
        assert ring.write(1, 16 * ticket, 32, 48, signal=2, advance=5) == ticket
    assert slot(agent, 1, 0) == (0, 0), "the open batch is not visible"
    ring.signal(1, 3, 9)
    ring.drain()
    first = command.Write(rank=1, source=0, destination=2, units=3, signal=2, advance=5)
    low, high = command.pack_write(first)
    assert slot(agent, 1, 0) == (low | LAP, high | LAP)
    assert slot(agent, 1, 8) == (0, 0)
    ring.flush()
    low, high = command.pack_drain(8)
    assert slot(agent, 1, 8) == (low | LAP, high | LAP), "a DRAIN covers what came before it"
    session.abort()


def test_lists_arrive_command_by_command_over_many_laps(agent: ScriptedAgent) -> None:
    print(f"seed {SEED}")
    dice = random.Random(SEED)
    session = connect(agent)
    ring = session.ring(0)
    count = 16 * 20 + 5
    sent = np.array([[dice.randrange(1 << 63), dice.randrange(1 << 63)] for _ in range(count)],
                    np.uint64)  # fmt: skip
    got: list[tuple[int, int]] = []

    def consume() -> None:
        while len(got) < count and not agent.ended.is_set():
            lap = LAP if len(got) // 16 % 2 == 0 else 0
            low, high = slot(agent, 0, len(got))
            if low & LAP == lap and high & LAP == lap:
                got.append((low & ~LAP, high & ~LAP))
                agent.agent.put(agent.layout.counters + layout.RING_TAIL, len(got))

    consumer = threading.Thread(target=consume)
    consumer.start()
    ring.push(sent[:1])
    ring.push(sent[1:])
    consumer.join(timeout=60)
    session.abort()
    assert got == [(int(low), int(high)) for low, high in sent]


def test_a_list_that_finds_no_room_is_a_timeout_and_the_ring_stays_usable(
    agent: ScriptedAgent,
) -> None:
    session = connect(agent)
    ring = session.ring(0)
    with pytest.raises(epfabric.Timeout, match="room in ring 0"):
        ring.push(command.pack_writes(1, 0, 0, np.ones(100, np.int64)), timeout_s=0.1)
    assert ring.next_ticket == 16, "two batches of 8 fill the ring"
    session.abort()


def test_commands_of_another_shape_are_refused(agent: ScriptedAgent) -> None:
    session = connect(agent)
    shapes = (np.zeros((3, 3), np.uint64), np.zeros(4, np.uint64))
    for bad in (*shapes, np.zeros((2, 2)).view(np.int64)):
        with pytest.raises(ValueError, match=r"\(n, 2\) of uint64"):
            session.ring(0).push(bad)  # type: ignore[arg-type]
    session.ring(0).push(np.zeros((4, 4), np.uint64)[:, ::2])
    assert session.ring(0).next_ticket == 4, "a view with gaps is as good"
    session.abort()


def test_two_threads_on_one_ring_are_told(agent: ScriptedAgent) -> None:
    session = connect(agent, timeout_s=60)
    ring = session.ring(0)
    ring.push(command.pack_writes(1, 0, 0, np.ones(16, np.int64)))
    errors: list[Exception] = []

    def push(timeout_s: float) -> None:
        try:
            ring.push(np.zeros((1, 2), np.uint64), timeout_s)
        except Exception as error:
            errors.append(error)

    blocked = threading.Thread(target=push, args=(60.0,))
    blocked.start()
    for _ in range(20000):
        push(0.0)
        if any("another thread" in str(e) for e in errors):
            break
    agent.vanish()
    blocked.join(timeout=30)
    assert not blocked.is_alive()
    session.abort()  # not close(), which asks an agent that may not be known yet to be gone
    told = [e for e in errors if isinstance(e, RuntimeError) and "another thread" in str(e)]
    assert len(told) == 1
