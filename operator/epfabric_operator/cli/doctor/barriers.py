"""Barriers and joins: time-outs, late ranks, slow groups."""

from __future__ import annotations

from collections.abc import Iterator

from epfabric_crds import EPGroup

from epfabric_operator.cli import output
from epfabric_operator.cli.doctor.facts import Facts, Finding

SLOW_S = 0.01
LATE_SHARE = 0.5
ENOUGH = 100


def check(facts: Facts) -> Iterator[Finding]:
    for group in facts.groups:
        if group.status.phase == "Failed":
            yield _failed(group)
        elif group.status.masked:
            yield _masked(group)
        yield from _slow(group)


def _name(group: EPGroup) -> str:
    return f"{group.metadata.namespace}/{group.metadata.name}"


def _failed(group: EPGroup) -> Finding:
    reason = group.status.reason or "without a reason"
    if "barrier" in reason:
        return Finding(
            "error",
            "barrier-time-out",
            _name(group),
            reason,
            "ranks that did not enter are stuck or lost, or packets between the nodes are dropped",
            "look at the pods of the missing ranks; `rdma statistic` and `ethtool -S` on their"
            " nodes show drops (counters that grow); raise spec.barrier.timeout only where ranks"
            " may pause that long",
        )
    if "did not join" in reason:
        return Finding(
            "error",
            "join-time-out",
            _name(group),
            reason,
            "some pods of the job never ran, so the others waited in vain",
            "are they Pending? Gang scheduling (Kueue, Volcano, JobSet) starts all or none",
        )
    return Finding(
        "error",
        "group-failed",
        _name(group),
        reason,
        "the epoch is over for all of its ranks; a job that restarts begins the next one",
        "the reason names rank, pod and node that were lost: look at that pod and that agent",
    )


def _masked(group: EPGroup) -> Finding:
    return Finding(
        "warning",
        "masked-ranks",
        _name(group),
        f"goes on without ranks {group.status.masked}: {group.status.reason or ''}",
        "their part of the work is missing until the next epoch",
        "end the job's step where it can begin anew; look at the pods of these ranks",
    )


def _slow(group: EPGroup) -> Iterator[Finding]:
    barriers = group.status.barriers
    if barriers is None or (barriers.count or 0) < ENOUGH:
        return
    share = barriers.slowest_share or 0.0
    if share > LATE_SHARE and group.spec.world_size > 2:
        yield Finding(
            "warning",
            "straggler",
            _name(group),
            f"rank {barriers.slowest_rank} comes last to {share * 100:.0f} % of the barriers",
            "all ranks wait for it",
            "look at its pod: throttled CPU, data loading, a GPU that it shares, a slow clock",
        )
    if (barriers.p99_seconds or 0.0) > SLOW_S:
        yield Finding(
            "warning",
            "slow-barriers",
            _name(group),
            f"P99 of barriers is {output.seconds(barriers.p99_seconds)},"
            f" the median {output.seconds(barriers.p50_seconds)}",
            "a long arrive phase is a late rank, a long network phase the network",
            "look at the phases on the dashboard (docs/telemetry.md)",
        )
