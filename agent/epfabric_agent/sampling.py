"""What the core counts, with the names that people know: the source of telemetry and statistics.

Called from the exporter's thread too, so it only reads, and copies what it walks over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from epfabric_crds.group import BarrierStatistics

from epfabric_agent.groups.hub import Hub
from epfabric_agent.groups.local_rank import LocalRank
from epfabric_agent.nic.room import rooms
from epfabric_agent.telemetry import spans
from epfabric_agent.telemetry.core_counts import barrier_sample, session_sample
from epfabric_agent.telemetry.histogram import from_core, quantile
from epfabric_agent.telemetry.snapshot import (
    BarrierSample,
    GroupSample,
    SessionSample,
    Snapshot,
)
from epfabric_agent.telemetry.traces import TakenKept
from epfabric_agent.topology.transport import Choice

if TYPE_CHECKING:
    from epfabric_agent._native import BarrierStats, Core


class Sampler:
    """`core` and `choice` are asked each time: they change with the agent's settings."""

    def __init__(
        self, hub: Hub, core: Callable[[], Core | None], choice: Callable[[], Choice]
    ) -> None:
        self._hub = hub
        self._core = core
        self._choice = choice

    def __call__(self) -> Snapshot:
        core, choice = self._core(), self._choice()
        sessions: list[SessionSample] = []
        barriers: list[BarrierSample] = []
        if core is not None:
            ranks = self._ranks()
            for counts in core.counters():
                if found := ranks.get((counts["group"], counts["rank"])):
                    namespace, name, local = found
                    sample = session_sample(
                        counts,
                        namespace=namespace,
                        group=name,
                        handle=local.sample,
                        nodes=local.nodes,
                    )
                    sessions.append(sample)
            barriers = self._barriers(core)
        return Snapshot(
            choice.type,
            choice.provider,
            tuple(sessions),
            tuple(barriers),
            self._groups(),
            rooms(core.nics()) if core is not None else (),
        )

    def kept(self, positions: Mapping[int, int], limit: int) -> list[TakenKept]:
        """See telemetry.traces.KeptSource."""
        core = self._core()
        running = [
            (group, epoch.handle)
            for group, part in list(self._hub.parts.items())
            if (epoch := part.epoch) is not None
        ]
        if core is None:
            return []
        share = max(1, limit // max(1, len(running)))
        found = []
        for group, handle in running:
            namespace, _, name = group.partition("/")
            taken = core.take_barriers(handle, positions.get(handle, 0), share)
            barriers = tuple(spans.from_core(one, namespace, name) for one in taken["barriers"])
            found.append(TakenKept(handle, taken["position"], taken["overwritten"], barriers))
        return found

    def _ranks(self) -> dict[tuple[int, int], tuple[str, str, LocalRank]]:
        found = {}
        for group, part in list(self._hub.parts.items()):
            namespace, _, name = group.partition("/")
            for local in list(part.ranks.values()):
                found[local.handle, local.rank] = (namespace, name, local)
        return found

    def _groups(self) -> tuple[GroupSample, ...]:
        samples = []
        for group, counts in self._hub.tally.counts().items():
            namespace, _, name = group.partition("/")
            epochs, refusals = dict(counts.epochs), dict(counts.refusals)
            samples.append(GroupSample(namespace, name, counts.handle, epochs, refusals))
        return tuple(samples)

    def _barriers(self, core: Core) -> list[BarrierSample]:
        samples = []
        for group, part in list(self._hub.parts.items()):
            epoch = part.epoch
            if epoch is not None:
                namespace, _, name = group.partition("/")
                coordinates = self._hub.coordinator(group) is not None
                samples.append(
                    barrier_sample(
                        core.barrier_stats(epoch.handle),
                        core.barrier_stats(epoch.handle, rail=True),
                        namespace=namespace,
                        group=name,
                        handle=epoch.handle,
                        masked=len(epoch.masked) if coordinates else None,
                    )
                )
        return samples


def rounded(value: float | None) -> float | None:
    """To 3 significant digits: buckets are no finer, and people read it."""
    return None if value is None else float(f"{value:.3g}")


def barrier_statistics(stats: BarrierStats) -> BarrierStatistics | None:
    """An EPGroup's statistics from the leader's core; None before the first barrier."""
    total = stats["phases"].get("total")
    if total is None or total["count"] == 0:
        return None
    histogram = from_core(total)
    last = stats["stragglers"]
    slowest = min(last, key=lambda rank: (-last[rank], rank)) if last else None
    share = last[slowest] / sum(last.values()) if slowest is not None else None
    return BarrierStatistics(
        count=histogram.count,
        p50_seconds=rounded(quantile(histogram, 0.5)),
        p99_seconds=rounded(quantile(histogram, 0.99)),
        slowest_rank=slowest,
        slowest_share=rounded(share),
    )
