"""A million hostile slots: each is done or refused as the model says, counted, and hurts nobody."""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from epfabric_agent.telemetry import runtime
from epfabric_agent.telemetry.config import TelemetryConfig
from epfabric_agent.telemetry.core_counts import session_sample
from epfabric_agent.telemetry.snapshot import Snapshot
from epfabric_host import _producer
from harness.otlp_receiver import Receiver, receiving
from native.hostile_slots import (
    Slots,
    Target,
    answered,
    reasons_of,
    signal_words,
    stream,
    touched,
    verdicts,
)
from native.pod import Group, Pod, drain, until, write

SLOTS = 1_000_000
RINGS, DEPTH, SIGNALS, WORLD = 4, 1024, 4, 3
SIZES = (60 << 10, 64 << 10)  # a hole of 4 KiB between the two
TARGET = Target(WORLD, SIGNALS, ((0, SIZES[0]), (64 << 10, (64 << 10) + SIZES[1])))
GUARD = 16 * mmap.PAGESIZE
LIMIT_NS = 60 * 10**9


class Canaries:
    """Memory of the test's own beside the mappings of the core, filled with noise."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._pages: list[np.ndarray] = []
        self._sums: list[bytes] = []

    def add(self) -> None:
        page = np.frombuffer(mmap.mmap(-1, GUARD), np.uint8)
        page[:] = self._rng.integers(0, 256, GUARD, np.uint8)
        self._pages.append(page)
        self._sums.append(digest(page))

    def intact(self) -> bool:
        return [digest(page) for page in self._pages] == self._sums

    def beside(self, name: str) -> int:
        """How many mappings of memfds with this name begin or end at a canary."""
        edges = {page.ctypes.data for page in self._pages}
        edges |= {page.ctypes.data + GUARD for page in self._pages}
        found = 0
        for line in Path("/proc/self/maps").read_text().splitlines():
            if f"memfd:{name}" in line:
                span = {int(end, 16) for end in line.split()[0].split("-")}
                found += bool(span & edges)
        return found


def digest(data: np.ndarray) -> bytes:
    return hashlib.blake2b(data.tobytes()).digest()


@contextmanager
def two_groups(nodes: list[list[int]], canaries: Canaries) -> Iterator[tuple[Group, Group]]:
    """The abused group and a bystander on the same cores, each region between canaries."""
    provider = "tcp;ofi_rxm" if len(nodes) > 1 else ""

    def fill(pod: Pod) -> None:
        canaries.add()
        for size in SIZES:
            pod.register(size)
            canaries.add()

    def group(beside: Group | None = None) -> Group:
        return Group(
            nodes,
            provider=provider,
            rings=RINGS,
            depth=DEPTH,
            signals=SIGNALS,
            nbytes=0,
            prepare=fill,
            beside=beside,
        )

    with group() as abused, group(beside=abused) as bystander:
        yield abused, bystander


def space(pod: Pod) -> np.ndarray:
    """A copy of the rank's offset space; zeros in the hole."""
    out = np.zeros(TARGET.regions[-1][1], np.uint8)
    for (begin, end), region in zip(TARGET.regions, pod.regions, strict=True):
        out[begin:end] = region
    return out


def fingerprint(pod: Pod) -> tuple[bytes, bytes]:
    """Of its regions, and of what others may write in its agent segment."""
    return digest(space(pod)), digest(pod.agent[pod.at["mask"] // 8 :])


def push(pod: Pod, streams: list[Slots]) -> None:
    """All streams to their rings, through the native producer, side by side."""
    session = pod.session
    fds = session.share()
    segments = _producer.Segments(*fds, RINGS, DEPTH, SIGNALS, WORLD)
    for fd in fds:
        os.close(fd)
    rings = [_producer.Ring(segments, ring, 8) for ring in range(RINGS)]
    for begin in range(0, len(streams[0]), DEPTH):
        for ring, slots in zip(rings, streams, strict=True):
            part = slots[begin : begin + DEPTH]
            assert ring.push(part, LIMIT_NS) == (_producer.DONE, len(part))
    for ring in rings:
        assert ring.wait(ring.next_ticket - 1, LIMIT_NS) == _producer.DONE
    segments.detach()


def slot_counts(receiver: Receiver) -> dict[tuple[str, str], int]:
    """epfabric.slots of the last export, by result and reason."""
    (resource,) = receiver.wait_for(1)[-1].resource_metrics
    (metric,) = [m for m in resource.scope_metrics[0].metrics if m.name == "epfabric.slots"]
    counts = {}
    for point in metric.sum.data_points:
        labels = {a.key: a.value.string_value for a in point.attributes}
        counts[labels["epfabric.result"], labels.get("epfabric.reason", "")] = point.as_int
    return counts


def exported(pod: Pod, transport: str) -> dict[tuple[str, str], int]:
    """What the agent's telemetry sends of this session."""

    def snapshot() -> Snapshot:
        sample = session_sample(
            pod.session.counters(), namespace="ns", group="g", handle=1, nodes=["a", "b"]
        )
        return Snapshot(transport, "", (sample,))

    with receiving() as receiver:
        reporter = runtime.start(TelemetryConfig(receiver.url, 3600.0, "a", "moe"), snapshot)
        reporter.flush()
        counts = slot_counts(receiver)
        reporter.shutdown()
    return counts


@pytest.mark.parametrize("nodes", [[[0, 1, 2]], [[0], [1, 2]]], ids=["loopback", "tcp"])
def test_a_million_hostile_slots_are_done_or_refused_and_touch_nothing_else(
    nodes: list[list[int]],
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    streams = [stream(rng, SLOTS // RINGS, TARGET) for _ in range(RINGS)]
    found = [verdicts(slots, TARGET) for slots in streams]
    canaries = Canaries(rng)
    with two_groups(nodes, canaries) as (abused, bystander):
        for pod in abused.pods + bystander.pods:
            for region in pod.regions:
                region[:] = rng.integers(0, 256, region.size, np.uint8)
        before = [space(pod) for pod in abused.pods]
        others = [fingerprint(pod) for pod in bystander.pods]
        assert canaries.beside("region") >= len(abused.pods)

        client = abused.pods[0]
        push(client, streams)

        assert canaries.intact()
        assert [fingerprint(pod) for pod in bystander.pods] == others
        for rank, pod in enumerate(abused.pods):
            legal = np.zeros(before[rank].size, bool)
            for ring, slots in enumerate(streams):
                legal |= touched(slots, found[ring] == 0, rank, legal.size)
            changed = space(pod) != before[rank]
            assert not (changed & ~legal).any()
            assert changed.sum() > legal.sum() // 2
            check_signals(pod, streams, found)

        check_counts(
            client, found, exported(client, "loopback" if len(nodes) == 1 else "libfabric")
        )
        assert all(node.core.events() == [] for node in abused.nodes)
        still_works(bystander)


def check_signals(pod: Pod, streams: list[Slots], found: list[np.ndarray]) -> None:
    """Only the client's words moved, each to the sum of what was accepted."""
    words = pod.agent[pod.at["signals"] // 8 :][: WORLD * RINGS * SIGNALS]
    expected = np.zeros((WORLD, RINGS, SIGNALS), np.uint64)
    for ring, slots in enumerate(streams):
        expected[0, ring] = signal_words(slots, found[ring] == 0, pod.rank, SIGNALS)
    until(lambda: (words == expected.ravel()).all(), f"the signal words of rank {pod.rank}", 10)
    mask = pod.agent[pod.at["mask"] // 8 : pod.at["results"] // 8]
    assert not mask.any()
    results = pod.agent[pod.at["results"] // 8 :][: RINGS * DEPTH * 2].reshape(RINGS, DEPTH, 2)
    for ring, slots in enumerate(streams):
        done = np.zeros(DEPTH, np.uint64)
        if pod.rank == 0:  # the last atomic of each place
            tickets = answered(slots, found[ring] == 0)
            np.maximum.at(done, tickets % np.uint64(DEPTH), tickets + np.uint64(1))
        assert (results[ring, :, 1] == done).all()


def check_counts(pod: Pod, found: list[np.ndarray], metrics: dict[tuple[str, str], int]) -> None:
    accepted = sum(int((verdict == 0).sum()) for verdict in found)
    refused: Counter[str] = Counter()
    for ring, verdict in zip(pod.session.counters()["rings"], found, strict=True):
        assert ring["refused_slots"] == reasons_of(verdict)
        refused.update(ring["refused_slots"])
        assert ring["taken"] == ring["completed"] == len(verdict)
        assert sum(ring["ops"].values()) + ring["ops"]["cas"] == (verdict == 0).sum()
        assert min(ring["ops"]["add"], ring["ops"]["cas"]) > 0
    assert accepted + sum(refused.values()) == SLOTS
    assert min(accepted, sum(refused.values())) >= SLOTS // 10
    assert metrics == {("completed", ""): accepted} | {
        ("refused", reason): count for reason, count in refused.items()
    }


def still_works(group: Group) -> None:
    a, b = group.pods[0], group.pods[1]
    a.run(1, write(1, 0, 4096, 4096, signal=0, advance=1))
    a.run(1, drain(a.head[1]))
    assert (b.regions[0][4096:8192] == a.regions[0][:4096]).all()
