"""What a GPU waits for: payload before signal, barriers without old data, an end in any case."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest
from epfabric.cuda.rank import DeviceRank
from harness.device import Gpu, Rank, Words, ranks_of
from native.pod import Group, until

DONE, ABORTED, TIMED_OUT = range(3)
BLOCKS = 4
WORDS = 4096  # of each block and round
NBYTES = 4 * BLOCKS * WORDS * 8  # two halves to send from, two to receive in
ROUNDS = 200
DEPTH = 64
# By wait, in the order of wait_in_vain's kinds: how many commands were pushed to either ring when
# it ends. A push that finds no room counts.
WAITS = {
    "signal": [0, 0],
    "room": [DEPTH + 1, 0],
    "completed": [0, 0],
    "drain": [2, 0],
    "barrier": [2, 1],
}
TRANSPORTS = pytest.mark.parametrize("nodes", [[[0, 1]], [[0], [1]]], ids=["loopback", "tcp"])


@TRANSPORTS
def test_no_word_is_older_than_its_signal(
    gpu: Gpu, failed: Words, wrong: Words, nodes: list[list[int]]
) -> None:
    with (
        Group(nodes, rings=BLOCKS, depth=64, nbytes=NBYTES) as group,
        ranks_of(group) as ranks,
    ):
        both = [(rank, gpu.stream()) for rank in ranks]
        for rank, stream in both:
            values = [*_buffers(rank), np.uint32(WORDS), np.uint32(ROUNDS)]
            gpu.launch(stream, "exchange", BLOCKS, 256, *values, wrong.address, failed.address)
        for _, stream in both:
            stream.sync()
        assert (failed.read()[0], wrong.read()[0]) == (0, 0)
        for rank in ranks:
            rings = rank.pod.session.counters()["rings"]
            assert [ring["ops"]["write"] for ring in rings] == [32 * ROUNDS] * BLOCKS


@TRANSPORTS
def test_no_word_is_older_than_a_barrier(
    gpu: Gpu, failed: Words, wrong: Words, nodes: list[list[int]]
) -> None:
    with Group(nodes, rings=3, depth=64, nbytes=NBYTES) as group, ranks_of(group) as ranks:
        both = [(rank, gpu.stream()) for rank in ranks]
        for rank, stream in both:
            values = [*_buffers(rank), np.uint32(ROUNDS)]
            gpu.launch(stream, "meet", 1, 32, *values, wrong.address, failed.address)
        for _, stream in both:
            stream.sync()
        assert (failed.read()[0], wrong.read()[0]) == (0, 0)
        assert group.nodes[0].core.barrier_stats(1)["phases"]["total"]["count"] == ROUNDS


def test_a_wait_in_vain_ends_at_its_bound(gpu: Gpu) -> None:
    waited, took, _ = _wait_in_vain(gpu, "signal", fail=False)
    assert waited == TIMED_OUT
    assert 0.2e9 <= took < 5e9


@pytest.mark.parametrize("kind", WAITS)
def test_a_failed_epoch_ends_every_wait_on_the_gpu(gpu: Gpu, kind: str) -> None:
    waited, took, pushed = _wait_in_vain(gpu, kind, fail=True)
    assert waited == ABORTED
    assert took < 15e9
    assert pushed == WAITS[kind], "it waited for something else"


def test_the_mirror_of_a_rank_equals_the_compiled_one(gpu: Gpu) -> None:
    out = Words(16, np.uint32)
    stream = gpu.stream()
    gpu.launch(stream, "offsets", 1, 1, np.uint64(0), out.address)
    stream.sync()
    names = [name for name, *_ in DeviceRank._fields_]
    assert out.read()[: len(names)].tolist() == [getattr(DeviceRank, n).offset for n in names]
    assert out.read()[len(names)] == ctypes.sizeof(DeviceRank)
    out.close()


def _buffers(rank: Rank) -> list[np.generic]:
    """The rank, where it writes what it sends, where it receives, and that place's offset."""
    half = NBYTES // 2
    return [
        rank.address,
        np.uint64(rank.region_on_device),
        np.uint64(rank.region_on_device + half),
        np.uint64(half),
    ]


def _wait_in_vain(gpu: Gpu, kind: str, *, fail: bool) -> tuple[int, int, list[int]]:
    """How it ended, after how many ns, and how many commands each ring got."""
    waited, took = Words(1, np.uint32), Words(1, np.uint64)
    with (
        Group([[0, 1]], depth=DEPTH) as group,
        ranks_of(group, timeout_s=20.0 if fail else 0.2) as ranks,
    ):
        rank, stream = ranks[0], gpu.stream()
        values = [rank.address, np.uint32(list(WAITS).index(kind))]
        values.append(np.uint64(rank.region_on_device))
        gpu.launch(stream, "wait_in_vain", 1, 32, *values, waited.address, took.address)
        try:
            if fail:
                _fail_when_it_waits(group, rank, kind)
        finally:
            stream.sync()
        result = int(waited.read()[0]), int(took.read()[0]), rank.device.heads()
    waited.close()
    took.close()
    return result


def _fail_when_it_waits(group: Group, rank: Rank, kind: str) -> None:
    stage, counter = rank.region.view(np.uint64), rank.pod.counter
    until(lambda: stage[0] == 1, f"the kernel to wait for {kind}", 10.0)
    if kind == "barrier":  # it enters when both rings are drained
        until(lambda: [counter(n, "completed") for n in range(2)] == [1, 1], "the drains", 10.0)
    time.sleep(0.05)
    assert stage[0] == 1, "the wait is over already"
    group.nodes[0].core.fail_epoch(1, "a test ends it")
