"""The demo's tables of telemetry, asked of Prometheus by the queries in queries.py."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from harness.demo import queries
from harness.demo.checks import Wrong
from harness.demo.show import Show, count, duration
from harness.prometheus import Prometheus

ARRIVAL_SECONDS = 60.0
PHASES = ("arrive", "local", "network", "release", "total")


class Telemetry:
    """Asks about one group."""

    def __init__(self, prometheus: Prometheus, namespace: str, group: str) -> None:
        self.prometheus = prometheus
        self.namespace = namespace
        self.group = group

    def ask(self, name: str) -> dict[tuple[str, ...], float]:
        """Values by the labels that name the rows."""
        labels = queries.QUERIES[name].row.split()
        expression = queries.expression(name, self.namespace, self.group)
        return {
            tuple(series["metric"].get(label, "") for label in labels): float(series["value"][1])
            for series in self.prometheus.query(expression)
        }

    def bytes_by_pair(self) -> dict[tuple[str, str], int]:
        """Payload that the agents counted as carried between nodes."""
        return {
            (source, destination): int(value)
            for (source, destination, transport), value in self.ask("bytes").items()
            if transport != "loopback"
        }

    def await_counts(self, done: Callable[[], bool], what: str) -> None:
        """The last export arrives an interval after the end."""
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while not done():
            if time.monotonic() > deadline:
                raise Wrong(f"not in Prometheus within {ARRIVAL_SECONDS:.0f} s: {what}")
            time.sleep(0.25)


def barrier_table(telemetry: Telemetry, show: Show) -> None:
    halves, highs = telemetry.ask("barrier_p50"), telemetry.ask("barrier_p99")
    rows = []
    for phase in PHASES:
        p50, p99 = halves.get((phase,), math.nan), highs.get((phase,), math.nan)
        if not (math.isfinite(p50) and math.isfinite(p99)):
            raise Wrong(f"Prometheus has no barrier latency of the phase {phase}")
        rows.append([phase, duration(p50), duration(p99)])
    show.table("Barrier latency by phase (Prometheus)", ["phase", "P50", "P99"], rows)


def plain_table(telemetry: Telemetry, show: Show, name: str) -> None:
    """One query as it is; empty results are an error."""
    query = queries.QUERIES[name]
    values = telemetry.ask(name)
    if not values:
        raise Wrong(f"Prometheus has nothing for {query.title!r}")
    heads = [label.removeprefix("epfabric_") for label in query.row.split()]
    rows = [[*labels, count(value)] for labels, value in sorted(values.items())]
    show.table(f"{query.title} (Prometheus)", [*heads, query.unit], rows)
