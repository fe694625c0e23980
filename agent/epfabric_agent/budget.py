"""What groups of many ranks take of an agent and its NIC; for `epfabric-agent budget` and sessions.

The numbers are the core's own (agent/native/budget.h), by which it makes mailboxes and refuses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from epfabric_crds import Settings

if TYPE_CHECKING:
    from epfabric_agent._native import Budget

Limits = Mapping[str, dict[str, int]]
"""By device, in the order in which proxies use them: what it says of itself (max_qp and so on)."""

WORLDS = (8, 16, 32, 64, 128, 256, 512, 1024)
RANKS_PER_NODE = 8
REGIONS = 2
MAILBOX_BYTES = 2 * 64 * 32
"""What a link touches of the agent's memory: a mailbox, and the records to send."""
_MIB = 1 << 20
_HEADER = (
    "| ranks | connections of a GPU | queue pairs of a GPU | of a node | "
    "mailboxes of a proxy: used, made | send queue | registrations of a GPU | pinned for a GPU | "
    "for a node | verbs' queues of a GPU | segments of a GPU | signal words |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def budget_of(settings: Settings, world: int, ranks_per_node: int, regions: int) -> Budget:
    """Of one rank; all have as many proxies and NICs. Raises NativeError for what cannot be."""
    from epfabric_agent._native import budget

    return budget(
        world=world,
        ranks_per_node=ranks_per_node,
        proxies=settings.proxies.per_gpu,
        rings=settings.rings,
        depth=settings.fifo.depth,
        signals=settings.fifo.signals,
        regions=regions,
        max_inflight=settings.proxies.max_inflight,
        nics_per_gpu=settings.high_throughput.nics_per_gpu,
    )


def mailbox_bytes(settings: Settings, world: int, pins: bool) -> tuple[int, int]:
    """Of one rank's mailboxes, in the agent's memory: of its endpoints, and of its links to all
    ranks. NICs pin what proxies make (`pins`); over tcp links touch what they use."""
    if pins:
        return budget_of(settings, world, ranks_per_node=1, regions=0)["pinned_bytes"], 0
    return 0, settings.proxies.per_gpu * world * MAILBOX_BYTES


def queue_bytes(settings: Settings, links: int, lines: int, spares: int = 0) -> tuple[int, int]:
    """Of one rank's verbs queues, in the agent's memory: of its endpoints, and of so many links,
    each over `lines` NICs, while `spares` others stand by."""
    from epfabric_agent._native import queue_memory

    endpoint, spare, link = queue_memory(settings.proxies.max_inflight)
    own = lines * endpoint + spares * spare
    return settings.proxies.per_gpu * own, links * lines * link


def table(
    settings: Settings,
    worlds: Iterable[int] = WORLDS,
    ranks_per_node: int = RANKS_PER_NODE,
    regions: int = REGIONS,
) -> str:
    """Markdown, a row for each size of group. Raises NativeError for what cannot be."""
    lines = [_HEADER]
    for world in worlds:
        at = budget_of(settings, world, ranks_per_node, regions)
        here = min(world, ranks_per_node)
        queues = sum(queue_bytes(settings, at["links"], settings.high_throughput.nics_per_gpu))
        cells = (
            world,
            at["links"],
            at["queue_pairs"],
            here * at["queue_pairs"],
            f"{at['domains']}, {at['mailboxes']}",
            at["queue_entries"],
            at["registrations"],
            f"{at['pinned_bytes'] / _MIB:.1f} MiB",
            f"{here * at['pinned_bytes'] / _MIB:.0f} MiB",
            f"{queues / _MIB:.0f} MiB",
            f"{at['segment_bytes'] / _MIB:.1f} MiB",
            at["signal_words"],
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def spoken(device: str, limits: Mapping[str, int]) -> str:
    """For the log and people."""
    return f"{device}: " + ", ".join(f"{name} {value}" for name, value in limits.items())


def verdicts(
    settings: Settings,
    limits: Limits,
    worlds: Iterable[int] = WORLDS,
    ranks_per_node: int = RANKS_PER_NODE,
    regions: int = REGIONS,
) -> str:
    """A line for each device with its limits, and one for each size of group that does not fit a
    node that has them all."""
    from epfabric_agent._native import nic_shortage

    lines = [spoken(device, told) for device, told in limits.items()]
    for world in worlds:
        why = nic_shortage(
            world=world,
            ranks_per_node=ranks_per_node,
            proxies=settings.proxies.per_gpu,
            nics_per_gpu=settings.high_throughput.nics_per_gpu,
            regions=regions,
            limits=dict(limits),
        )
        lines.append(f"{world} ranks: {why or 'they fit'}")
    return "\n".join(lines)
