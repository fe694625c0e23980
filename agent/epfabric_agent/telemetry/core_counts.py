"""Maps what the native core counts to the samples of a snapshot; called by the agent's source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epfabric_agent.telemetry.histogram import from_core
from epfabric_agent.telemetry.snapshot import BarrierSample, PeerSample, SessionSample

if TYPE_CHECKING:
    from epfabric_agent._native import BarrierStats, SessionCount


def session_sample(
    counts: SessionCount, *, namespace: str, group: str, handle: int, nodes: Sequence[str]
) -> SessionSample:
    """`nodes`: names in the order of the `nodes` that open_epoch was given."""
    completed: dict[str, int] = {}
    refused: dict[str, int] = {}
    refused_slots: dict[str, int] = {}
    for ring in counts["rings"]:
        for counted, total in (
            (ring["ops"], completed),
            (ring["refused"], refused),
            (ring["refused_slots"], refused_slots),
        ):
            for name, count in counted.items():
                total[name] = total.get(name, 0) + count
    return SessionSample(
        namespace=namespace,
        group=group,
        handle=handle,
        rank=counts["rank"],
        completed=completed,
        refused=refused,
        refused_slots=refused_slots,
        masked=sum(ring["masked"] for ring in counts["rings"]),
        masked_slots=sum(ring["masked_slots"] for ring in counts["rings"]),
        fifo_depth=sum(ring["depth"] for ring in counts["rings"]),
        inflight=sum(proxy["inflight"] for proxy in counts["proxies"]),
        joined=sum(ring["joined"] for ring in counts["rings"]),
        mended=sum(proxy["mended"] for proxy in counts["proxies"]),
        replayed=sum(proxy["replayed"] for proxy in counts["proxies"]),
        moved=sum(proxy["moved"] for proxy in counts["proxies"]),
        peers=_peers(counts, nodes),
    )


def barrier_sample(
    stats: BarrierStats,
    rails: BarrierStats | None = None,
    *,
    namespace: str,
    group: str,
    handle: int,
    masked: int | None = None,
) -> BarrierSample:
    """`handle`: the core's number of the group; `masked`: see BarrierSample."""
    return BarrierSample(
        namespace=namespace,
        group=group,
        handle=handle,
        phases={name: from_core(phase) for name, phase in stats["phases"].items()},
        stragglers=stats["stragglers"],
        rails={
            name: from_core(phase)
            for name, phase in (rails["phases"] if rails else {}).items()
            if phase["count"]
        },
        masked=masked,
    )


def _peers(counts: SessionCount, nodes: Sequence[str]) -> tuple[PeerSample, ...]:
    """One sample a node and transport: the core counts by destination rank."""
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    for to in counts["destinations"]:
        key = (nodes[to["node"]], to["transport"])
        writes, size, signals = sums.get(key, (0, 0, 0))
        sums[key] = (writes + to["writes"], size + to["bytes"], signals + to["signals"])
    return tuple(
        PeerSample(node, transport, *counted) for (node, transport), counted in sums.items()
    )
