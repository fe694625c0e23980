"""Proxies' CPUs while what the agent may use changes: which ones move, where to, and back."""

from __future__ import annotations

import random
from dataclasses import replace

from epfabric_agent.topology.cpus import UNPINNED, CpuLedger, Cpus, roomiest

NUMA_OF = {cpu: cpu // 2 for cpu in range(8)}
NEAR = {(0, 2), (2, 0), (1, 3), (3, 1)}  # by number node 3 is the farthest from node 1
DISTANCES = {
    (a, b): 10 if a == b else 20 if (a, b) in NEAR else 30 for a in range(4) for b in range(4)
}
ALL = Cpus(tuple(range(8)), NUMA_OF, DISTANCES)


def only(*usable: int) -> Cpus:
    return replace(ALL, usable=usable)


def ledger_of(*sessions: int, cpus: Cpus = ALL, strict: bool = False) -> CpuLedger:
    ledger = CpuLedger()
    for number, wanted in enumerate(sessions):
        ledger.take(number, wanted, cpus, None, strict)
    return ledger


def test_sessions_spread_over_numa_nodes_and_each_stays_on_one() -> None:
    ledger = ledger_of(2, 2, 2, 2)
    assert [ledger.cpus_of(number) for number in range(4)] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert ledger.local
    assert roomiest(ALL, {0, 1, 2, 4, 5, 6}) == 1
    assert roomiest(only(0, 6, 7), {0, 6, 7}) == 3
    assert roomiest(only(), ()) is None


def test_a_proxy_keeps_its_cpu_as_long_as_it_may() -> None:
    ledger = ledger_of(2, 2)
    ledger.follow(only(0, 1, 2, 3))
    assert (ledger.cpus_of(0), ledger.cpus_of(1)) == ((0, 1), (2, 3))
    ledger.follow(only(1, 2, 3))
    assert (ledger.cpus_of(0), ledger.cpus_of(1)) == ((UNPINNED, 1), (2, 3))
    assert ledger.constrained


def test_proxies_go_to_the_nearest_node_and_come_back_when_there_is_room() -> None:
    ledger = ledger_of(2, cpus=only(2, 3))
    ledger.follow(only(0, 1, 4, 5, 6, 7))
    assert ledger.cpus_of(0) == (6, 7)
    assert (ledger.local, ledger.constrained) == (False, False)
    ledger.follow(ALL)
    assert ledger.cpus_of(0) == (2, 3)
    assert ledger.local


def test_strict_proxies_leave_their_node_for_no_cpu_of_another() -> None:
    ledger = ledger_of(2, cpus=only(2, 3), strict=True)
    ledger.follow(only(3, 6, 7))
    assert ledger.cpus_of(0) == (UNPINNED, 3)
    assert ledger.constrained


def test_a_session_with_fewer_proxies_than_wanted_stays_constrained() -> None:
    ledger = ledger_of(4, cpus=only(2, 3))
    ledger.follow(ALL)
    assert ledger.cpus_of(0) == (2, 3)
    assert ledger.constrained


def test_no_two_proxies_share_a_cpu_whatever_changes_and_none_waits_beside_a_free_one() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    ledger, alive = CpuLedger(), set[int]()
    for step in range(2000):
        cpus = only(*sorted(rng.sample(range(8), rng.randrange(1, 9))))
        ledger.follow(cpus)
        if alive and rng.random() < 0.5:
            ledger.give_back(gone := rng.choice(sorted(alive)))
            alive.remove(gone)
        else:
            ledger.take(step, rng.randrange(1, 4), cpus, None, strict=False)
            alive.add(step)
        ledger.follow(cpus)
        chosen = [cpu for number in alive for cpu in ledger.cpus_of(number)]
        owned = [cpu for cpu in chosen if cpu != UNPINNED]
        assert len(owned) == len(set(owned)) <= len(cpus.usable)
        assert set(owned) <= set(cpus.usable)
        assert UNPINNED not in chosen or len(owned) == len(cpus.usable)
