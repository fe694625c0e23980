"""The core's counts become samples: summed over rings, proxies and the ranks of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epfabric_agent.telemetry.core_counts import barrier_sample, session_sample
from epfabric_agent.telemetry.snapshot import PeerSample

if TYPE_CHECKING:
    from epfabric_agent._native import BarrierStats, SessionCount


def test_a_sessions_counts_are_summed_by_op_reason_node_and_transport() -> None:
    counts: SessionCount = {
        "group": 4,
        "rank": 2,
        "rings": [
            {
                "ring": ring,
                "taken": 10,
                "completed": 8,
                "depth": 2,
                "ops": {"write": 5, "drain": ring},
                "refused": {"unsupported": 1} if ring else {},
                "refused_slots": {"unsupported": ring} if ring else {},
                "masked": ring,
                "masked_slots": 2 * ring,
                "joined": 3 + ring,
            }
            for ring in range(3)
        ],
        "destinations": [
            {"rank": r, "node": n, "transport": t, "writes": 1, "bytes": 16 * r, "signals": 2}
            for r, n, t in ((0, 0, "loopback"), (1, 0, "loopback"), (2, 1, "libfabric"))
        ],
        "proxies": [
            {
                "proxy": proxy,
                "cpu": -1,
                "turns": 9,
                "sleeps": 0,
                "blocks": 0,
                "inflight": 3,
                "records_sent": 0,
                "records_received": 0,
                "mended": 1 + proxy,
                "replayed": 5 * proxy,
                "moved": 2 * proxy,
            }
            for proxy in range(2)
        ],
    }
    got = session_sample(counts, namespace="ns", group="a", handle=7, nodes=["n0", "n1"])
    assert (got.rank, got.handle) == (2, 7)
    assert got.completed == {"write": 15, "drain": 3}
    assert got.refused == {"unsupported": 2}
    assert got.refused_slots == {"unsupported": 3}
    assert got.masked == 3
    assert got.masked_slots == 6
    assert (got.fifo_depth, got.inflight) == (6, 6)
    assert got.joined == 12
    assert (got.mended, got.replayed, got.moved) == (3, 5, 2)
    assert got.peers == (
        PeerSample("n0", "loopback", 2, 16, 4),
        PeerSample("n1", "libfabric", 1, 32, 2),
    )


def test_a_groups_phases_and_stragglers_are_kept() -> None:
    stats: BarrierStats = {
        "phases": {
            "total": {
                "count": 3,
                "sum_ns": 3000,
                "min_ns": 0,
                "max_ns": 2000,
                "zero_count": 1,
                "scale": 0,
                "offset": -20,
                "buckets": [2],
            }
        },
        "stragglers": {5: 3},
    }
    got = barrier_sample(stats, namespace="ns", group="a", handle=4)
    assert got.phases["total"].count == 3
    assert got.phases["total"].maximum == 2e-6
    assert got.stragglers == {5: 3}
