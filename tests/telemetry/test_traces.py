"""Four real agents, and what a real Jaeger then knows of their barriers."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from epfabric_agent.telemetry.spans import BARRIER, LAST_RANK, NODE_SPAN, PARTS, ROOT_SPAN
from harness.jaeger import Jaeger, Span
from harness.process import Processes, wait_until
from telemetry.four_agents import ADDRESSES, FourAgents

SEED = random.SystemRandom().randrange(2**32)
LATE_S = 0.05
SLOW_NS = 25_000_000
ARRIVE_S = 30.0
LEADER = "a"
ROUNDED_NS = 1000  # Jaeger keeps microseconds of durations


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes("epfabric-traces-") as started:
        yield started


@dataclass(frozen=True)
class Trace:
    """All spans of one barrier."""

    spans: tuple[Span, ...]

    @property
    def number(self) -> int:
        (number,) = {span.attributes[BARRIER] for span in self.spans}
        return int(number)

    @property
    def root(self) -> Span:
        (root,) = [span for span in self.spans if span.name == ROOT_SPAN]
        return root

    def of(self, node: str, name: str) -> Span:
        (found,) = [
            span
            for span in self.spans
            if span.resource["service.instance.id"] == node and span.name == name
        ]
        return found

    def check(self) -> None:
        """Every node is there, and its parts follow each other under its span, under the root."""
        assert {span.resource["service.instance.id"] for span in self.spans} == set(ADDRESSES)
        assert len(self.spans) == 1 + len(ADDRESSES) * (1 + len(PARTS))
        assert self.root.parent_id == ""
        assert self.root.resource["service.instance.id"] == LEADER
        for node in ADDRESSES:
            whole = self.of(node, NODE_SPAN)
            assert whole.parent_id == self.root.span_id
            at = whole.start_ns
            for part in PARTS:
                span = self.of(node, f"barrier.{part}")
                assert span.parent_id == whole.span_id
                assert abs(span.start_ns - at) <= ROUNDED_NS
                at = span.end_ns
            assert abs(at - whole.end_ns) <= ROUNDED_NS

    def took_until_collected_ns(self) -> int:
        """What the leader compared with the threshold."""
        return self.of(LEADER, "barrier.network").end_ns - self.root.start_ns


def traces_in(
    jaeger: Jaeger, since_ns: int, group: str, complete: Callable[[list[Span]], bool]
) -> dict[int, Trace]:
    """By barrier number, once `complete`: Jaeger stores a moment after it has answered."""
    spans: list[Span] = []

    def seen() -> bool:
        spans[:] = jaeger.spans(since_ns, time.time_ns(), epfabric_group=group)
        return complete(spans)

    wait_until(seen, ARRIVE_S, "the spans in Jaeger")
    by_id: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_id[span.trace_id].append(span)
    traces = [Trace(tuple(found)) for found in by_id.values()]
    for trace in traces:
        trace.check()
    by_number = {trace.number: trace for trace in traces}
    assert len(by_number) == len(traces), "one trace a barrier"
    return by_number


def whole_traces(spans: list[Span]) -> bool:
    """Each trace that has begun to arrive has all its spans."""
    by_id: dict[str, int] = defaultdict(int)
    for span in spans:
        by_id[span.trace_id] += 1
    return bool(by_id) and set(by_id.values()) == {1 + len(ADDRESSES) * (1 + len(PARTS))}


def test_exactly_the_slow_barriers_are_kept_by_all_agents_with_their_straggler(
    jaeger: Jaeger, processes: Processes
) -> None:
    """What is slow, the ranks know: they share this machine's clock. A barrier took no longer than
    from the first rank's entry to the last one's release. One with a late rank took at least as
    long as that rank waited after it had seen that all others had come."""
    print(f"seed {SEED}")
    draw = random.Random(SEED)
    barriers = 80
    straggler = draw.randrange(len(ADDRESSES))
    late = set(draw.sample(range(1, barriers), 6))
    since_ns = time.time_ns()
    traces = {"ratio": 0, "slow": f"{SLOW_NS // 10**6}ms", "endpoint": jaeger.otlp}
    agents = FourAgents(processes, "slow", {"traces": traces})
    plan = {"barriers": barriers, "straggler": straggler, "late": sorted(late), "late_s": LATE_S}
    by_rank = agents.meet(plan)
    agents.stop()
    kept = traces_in(
        jaeger,
        since_ns,
        "slow",
        lambda spans: whole_traces(spans) and len({s.trace_id for s in spans}) >= len(late),
    )

    most_ns = [
        max(out for _, out in times) - min(entered for entered, _ in times)
        for times in zip(*by_rank, strict=True)
    ]
    quick = {number for number in range(barriers) if most_ns[number] < SLOW_NS}
    assert late <= kept.keys()
    assert not kept.keys() & quick
    for number, trace in kept.items():
        took_ns = trace.took_until_collected_ns()
        assert SLOW_NS - ROUNDED_NS <= took_ns <= most_ns[number] + ROUNDED_NS
    for number in late:
        assert kept[number].root.attributes[LAST_RANK] == straggler
    print(f"{len(quick)} of {barriers} barriers were surely quick, and none of them was kept")


@pytest.mark.parametrize("ratio", [1, 0.3])
def test_that_part_of_the_barriers_is_kept_and_by_all_agents(
    jaeger: Jaeger, processes: Processes, ratio: float
) -> None:
    barriers = 100
    group = f"ratio-{ratio * 10:.0f}"
    since_ns = time.time_ns()
    traces = {"ratio": ratio, "slow": "0s", "endpoint": jaeger.otlp}
    agents = FourAgents(processes, group, {"traces": traces})
    agents.meet({"barriers": barriers, "straggler": -1, "late": [], "late_s": 0.0})
    agents.stop()
    kept = traces_in(jaeger, since_ns, group, whole_traces)
    if ratio == 1:
        assert kept.keys() == set(range(barriers))
    assert abs(len(kept) - ratio * barriers) <= 6 * (barriers * ratio * (1 - ratio)) ** 0.5
    for trace in kept.values():
        low = int(trace.root.trace_id, 16) & (2**64 - 1)
        assert low < ratio * 2**64, "the trace id decides"
