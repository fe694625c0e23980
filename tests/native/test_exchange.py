"""Cores in one process over the real transports: data, signals, barriers, byte for byte."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
from native.pod import Group, Pod, barrier, drain, signal, until, write
from native.test_mask import proxies

PROVIDERS = {"loopback": "", "tcp": "tcp;ofi_rxm"}


def seeded() -> np.random.Generator:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def nodes_of(transport: str, ranks: int) -> list[list[int]]:
    return [list(range(ranks))] if transport == "loopback" else [[rank] for rank in range(ranks)]


def meet(pods: list[Pod]) -> None:
    tickets = [(pod, pod.push(0, barrier())) for pod in pods]
    for pod, ticket in tickets:
        pod.wait(0, ticket)


@pytest.mark.parametrize("transport", PROVIDERS)
def test_random_writes_arrive_byte_for_byte_after_a_drain(transport: str) -> None:
    random = seeded()
    size = 1 << 20
    with Group(nodes_of(transport, 2), provider=PROVIDERS[transport], nbytes=size) as group:
        a, b = group.pods
        a.regions[0][:] = random.integers(0, 256, size, dtype=np.uint8)
        expected = b.regions[0].copy()
        units = size // 16
        for i in range(
            600
        ):  # more than nine laps of 64 slots in each ring, ends of the region included
            length = int(min(units, 1 + random.geometric(1 / 200)))
            src = int(random.integers(0, units - length + 1))
            dst = int(random.integers(0, units - length + 1)) if i else units - length
            ring = i % 2
            if (
                ring == 0 and a.head[1]
            ):  # one order for the numpy model: the other ring is drained first
                a.run(1, drain(a.head[1]))
            elif ring == 1:
                a.run(0, drain(a.head[0]))
            a.push(ring, write(1, src * 16, dst * 16, length * 16))
            expected[dst * 16 : (dst + length) * 16] = a.regions[0][src * 16 : (src + length) * 16]
        for ring in range(2):
            a.run(ring, drain(a.head[ring]))
        assert np.array_equal(b.regions[0], expected)
        assert [a.counter(ring, "refused") for ring in range(2)] == [0, 0]


@pytest.mark.parametrize("transport", PROVIDERS)
def test_a_signal_is_seen_only_after_its_payload(transport: str) -> None:
    with Group(nodes_of(transport, 2), provider=PROVIDERS[transport]) as group:
        a, b = group.pods
        words = a.regions[0].view(np.uint64)
        seen = b.regions[0].view(np.uint64)

        def both() -> int:
            return b.signal_value(0, 0, 3) + b.signal_value(0, 1, 3)

        for round_ in range(1, 301):
            words[:512] = round_
            a.push(round_ % 2, write(1, 0, 65536, 4096, signal=3, advance=2))
            until(lambda n=2 * round_: both() == n, "the signal")
            assert (seen[8192 : 8192 + 512] == round_).all()


@pytest.mark.parametrize("transport", PROVIDERS)
def test_signals_add_up_by_writer_ring_and_word(transport: str) -> None:
    with Group(nodes_of(transport, 3), provider=PROVIDERS[transport], rings=3, signals=5) as group:
        for pod in group.pods:
            for other in range(3):
                for ring in range(3):
                    for index in range(5):
                        for _ in range(4):
                            pod.push(
                                ring, signal(other, index, 1 + pod.rank * 100 + ring * 10 + index)
                            )
        for pod in group.pods:
            for ring in range(3):
                pod.run(ring, drain(pod.head[ring]))
        meet(group.pods)
        for pod in group.pods:
            for source in range(3):
                for ring in range(3):
                    for index in range(5):
                        want = 4 * (1 + source * 100 + ring * 10 + index)
                        assert pod.signal_value(source, ring, index) == want


@pytest.mark.parametrize("transport", PROVIDERS)
def test_after_a_barrier_nobody_reads_older_data_or_signals(transport: str) -> None:
    """1,000 barriers; before each, every rank writes the round's number to every rank."""
    ranks = 2
    with Group(
        nodes_of(transport, ranks), provider=PROVIDERS[transport], rings=1, signals=1
    ) as group:
        for round_ in range(1, 1001):
            for pod in group.pods:
                pod.regions[0].view(np.uint64)[:2] = round_
                for other in range(ranks):
                    slot = 4096 + (round_ % 2) * 1024 + pod.rank * 16
                    pod.push(0, write(other, 0, slot, 16, signal=0, advance=1))
                pod.push(0, drain(pod.head[0]))
            meet(group.pods)
            for pod in group.pods:
                at = (4096 + (round_ % 2) * 1024) // 8
                assert (pod.regions[0].view(np.uint64)[at : at + 2 * ranks] == round_).all()
                assert [pod.signal_value(source, 0, 0) for source in range(ranks)] == [
                    round_
                ] * ranks
        core = group.nodes[0].core
        until(
            lambda: core.barrier_stats(1)["phases"]["total"]["count"] == 1000,
            "the times of the last barrier, which are written once it has let go",
        )
        stats = core.barrier_stats(1)
        assert {name: phase["count"] for name, phase in stats["phases"].items()} == dict.fromkeys(
            ("arrive", "local", "network", "release", "total"), 1000
        )
        for phase in stats["phases"].values():
            assert sum(phase["buckets"]) + phase["zero_count"] == 1000
        assert sum(stats["stragglers"].values()) == 1000


def test_a_barrier_covers_writes_that_nobody_drained() -> None:
    """Ring 1 is another proxy's: its writes go by another connection than the barrier's records."""
    size = 1 << 20
    with Group([[0], [1]], proxies=2, nbytes=2 * size) as group:
        for round_ in range(1, 61):
            for pod in group.pods:
                pod.regions[0].view(np.uint64)[: size // 8] = round_
                pod.push(1, write(1 - pod.rank, 0, size, size))
            meet(group.pods)
            for pod in group.pods:
                assert (pod.regions[0].view(np.uint64)[size // 8 :] == round_).all()
            meet(group.pods)


@pytest.mark.parametrize("proxies", [[1, 1, 1], [1, 2, 3], [3, 1, 2]])
def test_nodes_with_different_numbers_of_proxies_and_ranks_exchange(proxies: list[int]) -> None:
    random = seeded()
    nodes = [[0, 3], [1], [4, 2, 5]]
    rings, block = 4, 4096
    with Group(nodes, proxies=proxies, rings=rings, nbytes=1 << 18) as group:
        data = [random.integers(0, 256, 6 * block, dtype=np.uint8) for _ in range(6)]
        for pod in group.pods:
            pod.regions[0][: 6 * block] = data[pod.rank]
        for pod in group.pods:
            for other in range(6):
                ring = (pod.rank + other) % rings
                target = (8 + pod.rank) * block
                pod.push(ring, write(other, other * block, target, block, signal=1, advance=7))
        for pod in group.pods:
            for ring in range(rings):
                pod.run(ring, drain(pod.head[ring]))
        meet(group.pods)
        for pod in group.pods:
            for source in range(6):
                got = pod.regions[0][(8 + source) * block : (9 + source) * block]
                assert np.array_equal(got, data[source][pod.rank * block : (pod.rank + 1) * block])
                assert pod.signal_value(source, (source + pod.rank) % rings, 1) == 7


@pytest.mark.parametrize("transport", PROVIDERS)
@pytest.mark.parametrize("packing", [1, 8])
def test_neighbouring_writes_arrive_whole_and_count_each(transport: str, packing: int) -> None:
    """Pushed before the epoch opens, so that all of them are visible at once."""
    random, size = seeded(), 3584
    data = random.integers(0, 256, 20 * size, dtype=np.uint8)

    def push(pod: Pod) -> None:
        pod.regions[0][: data.size] = data
        if pod.rank == 0:
            for i in range(20):
                at = i * size
                pod.push(0, write(1, at, data.size + at, size, signal=0, advance=2 * (i % 2)))

    nodes = nodes_of(transport, 2)
    with Group(nodes, provider=PROVIDERS[transport], prepare=push, packing=packing) as group:
        a, b = group.pods
        a.run(0, drain(20))
        assert np.array_equal(b.regions[0][data.size : 2 * data.size], data)
        until(lambda: b.signal_value(0, 0, 0) == 20, "all signals")
        until(lambda: a.session.counters()["rings"][0]["depth"] == 0, "retiring")
        counters = a.session.counters()
        row = counters["destinations"][0]
        assert (row["writes"], row["bytes"], row["signals"]) == (20, data.size, 10)
        assert counters["rings"][0]["ops"]["write"] == 20
        assert counters["rings"][0]["joined"] == (0 if packing == 1 else 10)


def test_bytes_and_commands_are_counted_exactly_by_destination() -> None:
    with Group([[0, 1], [2]], rings=2) as group:
        a = group.pods[0]
        for i in range(50):
            a.push(i % 2, write(2, 0, 0, 160))
            a.push(i % 2, write(1, 0, 0, 32, signal=0, advance=1))
        a.push(1, signal(2, 0, 1))
        for ring in range(2):
            a.run(ring, drain(a.head[ring]))
        until(lambda: not any(ring["depth"] for ring in a.session.counters()["rings"]), "retiring")
        counters = a.session.counters()
        rows = {row["rank"]: row for row in counters["destinations"]}
        assert rows[2] == {
            "rank": 2,
            "node": 1,
            "transport": "libfabric",
            "writes": 50,
            "bytes": 8000,
            "signals": 1,
        }
        assert rows[1] == {
            "rank": 1,
            "node": 0,
            "transport": "loopback",
            "writes": 50,
            "bytes": 1600,
            "signals": 50,
        }
        ops = [ring["ops"] for ring in counters["rings"]]
        assert ops[0] == {"write": 50, "signal": 0, "drain": 1, "barrier": 0, "add": 0, "cas": 0}
        assert ops[1] == {"write": 50, "signal": 1, "drain": 1, "barrier": 0, "add": 0, "cas": 0}


def test_more_in_flight_than_the_cap_and_more_records_than_credits() -> None:
    with Group([[0], [1]], rings=1, depth=1024, max_inflight=3, max_inflight_bytes=4096) as group:
        a, b = group.pods
        for i in range(3000):
            a.push(0, write(1, 0, 0, 65536 if i % 500 == 0 else 64, signal=i % 4, advance=1))
        a.run(0, drain(a.head[0]))
        until(lambda: sum(b.signal_value(0, 0, i) for i in range(4)) == 3000, "all signals")
        assert group.nodes[0].core.events() == []


@pytest.mark.parametrize("inflight", [1, 3])
def test_a_session_keeps_within_its_own_cap_over_all_destinations(inflight: int) -> None:
    """The core's own cap of 256 would let each of the three links have many."""
    nodes = [[0], [1], [2], [3]]
    with Group(nodes, rings=1, depth=1024, nbytes=1 << 20, inflight=inflight) as group:
        a = group.pods[0]
        seen = [0]

        def look() -> bool:
            seen.append(proxies(a)[0]["inflight"])
            return a.counter(0, "completed") > ticket

        for i in range(600):
            ticket = a.push(0, write(1 + i % 3, 0, 0, 65536))
            look()
        until(look, "the last write")
        # Records of the epoch go beside the cap: one for each destination.
        assert 1 <= max(seen) <= inflight + 3


def test_both_ends_flood_each_other_with_signals() -> None:
    with Group([[0], [1]], rings=2, depth=256) as group:
        for i in range(5000):
            for pod in group.pods:
                pod.push(i % 2, signal(1 - pod.rank, i % 4, 1))
        for pod in group.pods:
            for ring in range(2):
                pod.run(ring, drain(pod.head[ring]))
        meet(group.pods)
        for pod in group.pods:
            other = 1 - pod.rank
            assert sum(pod.signal_value(other, r, i) for r in range(2) for i in range(4)) == 5000
