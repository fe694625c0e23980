"""The PromQL of the demo's tables, in one table; asked by the demo and by the telemetry tests.

Counts are those of the whole life of the group on all agents, so no rate is taken where a number
of the run is meant. $group stands for the selector of one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template


@dataclass(frozen=True)
class Query:
    """What a table shows: its title, the label that names its rows, the unit of its values."""

    title: str
    row: str
    unit: str
    template: str


QUERIES = {
    "barrier_p50": Query(
        "Barrier latency, P50",
        "epfabric_phase",
        "s",
        "histogram_quantile(0.5, sum by (epfabric_phase)"
        " (epfabric_barrier_duration_seconds{$group}))",
    ),
    "barrier_p99": Query(
        "Barrier latency, P99",
        "epfabric_phase",
        "s",
        "histogram_quantile(0.99, sum by (epfabric_phase)"
        " (epfabric_barrier_duration_seconds{$group}))",
    ),
    "barrier_count": Query(
        "Barriers that each agent counted",
        "instance",
        "barriers",
        "sum by (instance) (histogram_count("
        'epfabric_barrier_duration_seconds{$group, epfabric_phase="total"}))',
    ),
    "commands": Query(
        "Commands retired",
        "epfabric_op",
        "commands",
        'sum by (epfabric_op) (epfabric_commands_total{$group, epfabric_result="completed"})',
    ),
    "commands_per_second": Query(
        "Commands per second, mean of the best 10 s of each agent (the exchange is shorter)",
        "instance",
        "commands/s",
        "max_over_time(sum by (instance) (rate(epfabric_commands_total{$group}[10s]))[15m:1s])",
    ),
    "refused": Query(
        "Commands refused",
        "epfabric_reason",
        "commands",
        'sum by (epfabric_reason) (epfabric_commands_total{$group, epfabric_result="refused"})',
    ),
    "bytes": Query(
        "Payload from agent to agent",
        "instance epfabric_peer epfabric_transport",
        "bytes",
        "sum by (instance, epfabric_peer, epfabric_transport) (epfabric_bytes_total{$group})",
    ),
    "slowest_rank": Query(
        "The rank that arrived last most often",
        "epfabric_rank",
        "barriers",
        "topk(1, sum by (epfabric_rank) (epfabric_barrier_stragglers_total{$group}))",
    ),
    "transport": Query(
        "Transports in use",
        "epfabric_transport epfabric_provider",
        "agents",
        "count by (epfabric_transport, epfabric_provider) (epfabric_transport_info)",
    ),
    "fifo_depth": Query(
        "Slots taken and not yet retired, the most in 15 minutes",
        "epfabric_rank",
        "slots",
        "max by (epfabric_rank) (max_over_time(epfabric_fifo_depth{$group}[15m]))",
    ),
}


def expression(name: str, namespace: str, group: str) -> str:
    """One query for one group."""
    selector = f'k8s_namespace_name="{namespace}", epfabric_group="{group}"'
    return Template(QUERIES[name].template).substitute(group=selector)
