"""The benches over verbs in small, in the VM: they run beside perftest, and the data is right."""

from __future__ import annotations

import pytest
from epfabric_bench import native
from epfabric_bench.benches import atomics, verbs, verbs_barrier
from epfabric_bench.run import Run
from harness import vm

pytestmark = pytest.mark.timeout(1800)
PEERS = {
    ("8 B", "write_latency_seconds"): "ib_write_lat",
    ("7 KiB", "write_latency_seconds"): "ib_write_lat",
    ("8 B", "messages_per_second"): "ib_write_bw",
}


def test_a_small_run_stands_beside_perftest() -> None:
    native.build(print, "verbs")
    vm.prepare()
    run = Run(small=True)
    lines = verbs.measure(run)
    assert all(line.verified for line in lines)
    for case, peer in PEERS.items():
        sides = [line.side for line in lines if (line.case, line.metric) == case]
        assert sorted(sides) == sorted(["epfabric", peer]), (case, sides)
        for line in lines:
            assert 0 < line.samples[0] < 1e9


def test_a_small_run_of_atomics_stands_beside_perftest() -> None:
    native.build(print, "atomics")
    vm.prepare()
    lines = atomics.measure(Run(small=True))
    assert all(line.verified for line in lines)
    peers = {(line.case, line.side) for line in lines}
    for case, peer in {
        "tcp: ADD by agent": "two signals",
        "soft RoCE: ADD by agent": "two signals",
        "soft RoCE: ADD by NIC": "ib_atomic_lat",
        "soft RoCE: one order": "an immediate alone",
    }.items():
        assert {(case, "epfabric"), (case, peer)} <= peers


def test_a_small_run_of_barriers_stands_beside_perftest_in_every_case() -> None:
    native.build(print, "paths")
    vm.prepare()
    lines = verbs_barrier.measure(Run(small=True))
    assert all(line.verified for line in lines)
    cases = ["1 proxy", "4 proxies, 3 nap", "4 proxies, 3 block"]
    for side in ("epfabric", verbs_barrier.PEER):
        assert [line.case for line in lines if line.side == side] == cases
    assert all(0 < min(line.samples) < 10 for line in lines)
