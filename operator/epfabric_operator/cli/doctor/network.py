"""Network: packets too small for EFA, plain TCP, links down, MTUs and rails that differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from epfabric_crds import EPFabric, EPFabricNode
from epfabric_crds.node import Nic

from epfabric_operator.cli.doctor.facts import Facts, Finding, some

SMALL_PACKING = 8
UP = frozenset({None, "", "up", "active", "unknown"})


def check(facts: Facts) -> Iterator[Finding]:
    for fabric in facts.fabrics:
        nodes = [n for n in facts.epnodes if n.spec.fabric == fabric.metadata.name]
        yield from _efa(fabric, nodes)
        yield from _tcp(fabric, nodes)
        yield from _mtu(fabric, nodes)
        yield from _rails(fabric, nodes)
    for node in facts.epnodes:
        yield from _down(node)


def nics(node: EPFabricNode) -> tuple[Nic, ...]:
    """Those that the fabric may use: with an RDMA device."""
    topology = node.status.topology
    return tuple(nic for nic in topology.nics if nic.rdma_device) if topology else ()


def is_efa(node: EPFabricNode) -> bool:
    return any((nic.driver or "").startswith("efa") for nic in nics(node))


def _efa(fabric: EPFabric, nodes: list[EPFabricNode]) -> Iterator[Finding]:
    packing = fabric.spec.low_latency.packing
    on_efa = [node.metadata.name for node in nodes if is_efa(node)]
    if on_efa and packing < SMALL_PACKING:
        yield Finding(
            "warning",
            "efa-small-packets",
            fabric.metadata.name,
            f"lowLatency.packing is {packing} and these nodes use EFA: {some(on_efa)}",
            "EFA costs much per message: one token of 7 KiB a message can take over 100 µs",
            f"set spec.lowLatency.packing: {SMALL_PACKING}, so that tokens for one rank share one",
        )


def _tcp(fabric: EPFabric, nodes: list[EPFabricNode]) -> Iterator[Finding]:
    slow = [
        node.metadata.name
        for node in nodes
        if (node.status.transport and "tcp" in (node.status.transport.provider or ""))
    ]
    if slow:
        idle = [n for n in slow if any(nics(node) for node in nodes if node.metadata.name == n)]
        todo = "for more than a trial use nodes with RDMA, and set transport.allowTcp: false"
        if idle:
            todo = f"{some(idle)} have RDMA devices: their transport's reason says why none is used"
        yield Finding(
            "warning" if idle else "info",
            "tcp",
            fabric.metadata.name,
            f"{len(slow)} nodes run over plain TCP: {some(slow)}",
            "slow, and not encrypted; only the agents' own messages are",
            todo,
        )


def _mtu(fabric: EPFabric, nodes: list[EPFabricNode]) -> Iterator[Finding]:
    by_mtu: dict[int, list[str]] = defaultdict(list)
    for node in nodes:
        for nic in nics(node):
            if nic.mtu:
                by_mtu[nic.mtu].append(f"{node.metadata.name}/{nic.name}")
    if len(by_mtu) > 1:
        listed = "; ".join(f"{mtu}: {some(found, 3)}" for mtu, found in sorted(by_mtu.items()))
        yield Finding(
            "warning",
            "mtu-differs",
            fabric.metadata.name,
            f"NICs of one fabric have different MTUs: {listed}",
            "large packets are dropped between them: writes are repeated, barriers time out",
            "set one MTU on all NICs and switches of the fabric",
        )


def _rails(fabric: EPFabric, nodes: list[EPFabricNode]) -> Iterator[Finding]:
    by_count: dict[int, list[str]] = defaultdict(list)
    for node in nodes:
        if node.status.topology is not None:
            by_count[len(nics(node))].append(node.metadata.name)
    if len(by_count) > 1:
        fewest = min(by_count)
        yield Finding(
            "warning",
            "rails-differ",
            fabric.metadata.name,
            f"{some(by_count[fewest])} have {fewest} RDMA NICs, others up to {max(by_count)}",
            "ranks meet through NICs that other nodes lack; the slowest node sets the pace",
            "look for a NIC that is missing or without driver there, or make two fabrics",
        )


def _down(node: EPFabricNode) -> Iterator[Finding]:
    down = [nic.name for nic in nics(node) if (nic.state or "").lower() not in UP]
    if down:
        yield Finding(
            "error",
            "link-down",
            node.metadata.name,
            f"RDMA NICs without link: {some(down)}",
            "ranks whose rail they are have no way, or a longer one",
            "look at cable, switch port and `rdma link` on the node",
        )
