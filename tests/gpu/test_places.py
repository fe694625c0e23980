"""Rows by expert as the kernels lay them out and sum them, against lists that a loop makes."""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from cuda.bindings import driver
from epfabric.buffer.expanded import most_places
from epfabric.cuda import places
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.rank import checked
from gpu.expert_ranks import POISON, Array, bf16_of, float_of
from harness.device import Gpu

WORDS = 5


@pytest.fixture(scope="module")
def kernels(gpu: Gpu) -> Kernels:
    return Kernels(places.SOURCE)


@pytest.fixture
def rng() -> np.random.Generator:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as arrays:
        yield arrays


class Rows:
    """Random rows of a dispatch, and by hand where they lie."""

    def __init__(self, rng: np.random.Generator, count: int, local: int, k: int) -> None:
        self.local, self.k, self.count = local, k, count
        self.alignment = int(rng.choice([1, 4, 128]))
        self.topk = rng.integers(-1, local, (count, k))  # names some twice
        self.topk[rng.random(count) < 0.1] = -1
        self.topk[count - count // 9 :] = -1  # room that nothing came into
        lists = [
            [row for row in range(count) if expert in self.topk[row]] for expert in range(local)
        ]
        self.counts = np.array([len(one) for one in lists], dtype=np.int32)
        self.row_at: dict[int, int] = {}
        self.places = np.full((count, k), -1)
        end = 0
        for expert, one in enumerate(lists):
            for i, row in enumerate(one):
                self.row_at[end + i] = row
                self.places[row, list(self.topk[row]).index(expert)] = end + i
            end += -(-len(one) // self.alignment) * self.alignment
        self.total = end


class OnGpu:
    """The same on the GPU; what kernels write is poisoned at first."""

    def __init__(self, stack: ExitStack, kernels: Kernels, rows: Rows, total: int) -> None:
        self._stack, self._kernels, self.rows, self.total = stack, kernels, rows, total
        self.places = self.array((rows.count, rows.k), np.int64)
        self.row_of = self.array((total,), np.int64)
        topk, counts = self.of(rows.topk), self.of(rows.counts)
        places.place(
            kernels, topk.address, counts.address, self.places.address, self.row_of.address,
            shape=(rows.count, rows.k), experts=rows.local, alignment=rows.alignment, total=total,
            stream=0,
        )  # fmt: skip

    def array(self, shape: tuple[int, ...], kind: type[np.generic]) -> Array:
        made = Array(shape, kind)
        self._stack.callback(made.close)
        return made

    def of(self, values: np.ndarray) -> Array:
        made = self.array(values.shape, values.dtype.type)
        made.write(values)
        return made

    def spread(
        self, values: np.ndarray, scales: np.ndarray, weights: np.ndarray, zero: bool
    ) -> list[np.ndarray]:
        given = [self.of(one) for one in (values, scales, weights)]
        shapes = [(self.total, *one.shape[1:]) for one in (values, scales)] + [(self.total,)]
        out = [self.array(s, a.kind.type) for s, a in zip(shapes, given, strict=True)]
        pairs = [(a.address, b.address) for a, b in zip(given, out, strict=True)]
        places.spread(
            self._kernels, pairs[0], pairs[1], pairs[2], self.places.address, self.row_of.address,
            shape=(self.rows.count, self.rows.k), row_bytes=2 * values.shape[1],
            scale_bytes=4 * WORDS, total=self.total, zero=zero, stream=0,
        )  # fmt: skip
        return [one.read() for one in out]

    def add_up(self, values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sums = self.array((self.rows.count, values.shape[1]), np.uint16)
        back = self.array((self.rows.count, self.rows.k), np.float32)
        places.add_up(
            self._kernels, self.of(values).address, sums.address,
            (self.of(weights).address, back.address), self.places.address,
            shape=(self.rows.count, self.rows.k), row_bytes=2 * values.shape[1], total=self.total,
            stream=0,
        )  # fmt: skip
        return sums.read(), back.read()


@pytest.mark.parametrize(
    ("count", "local", "k", "hidden"),
    [(0, 3, 2, 128), (1, 1, 1, 8), (60, 8, 6, 1024), (3000, 32, 8, 2048), (1025, 128, 16, 520)],
)
def test_rows_lie_by_expert_in_order_and_come_back_summed(
    kernels: Kernels, rng: np.random.Generator, stack: ExitStack, count: int, local: int, k: int,
    hidden: int,
) -> None:  # fmt: skip
    made = Rows(rng, count, local, k)
    most = most_places(count, k, local, made.alignment)
    for total, zero in ((made.total, True), (most, False)):  # known, or room for all
        on = OnGpu(stack, kernels, made, total)
        wanted = np.array([made.row_at.get(place, -1) for place in range(total)], np.int64)
        assert np.array_equal(on.row_of.read(), wanted)
        assert np.array_equal(on.places.read(), made.places)
        values = bf16_of(rng.standard_normal((count, hidden)))
        scales = rng.integers(0, 2**32, (count, WORDS), dtype=np.uint32)
        weights = rng.random((count, k), np.float32)
        out, out_scales, out_weights = on.spread(values, scales, weights, zero)
        there = wanted >= 0
        assert np.array_equal(out[there], values[wanted[there]])
        assert np.array_equal(out_scales[there], scales[wanted[there]])
        assert not out_weights[~there].any()
        empty = 0 if zero else POISON * 0x0101
        assert (out[~there] == empty).all()
        held = made.places >= 0
        assert np.array_equal(out_weights[made.places[held]], weights[held])
        results = bf16_of(rng.standard_normal((total, hidden)))
        results[~there] = 0xFFFF  # NaN: what is in the padding counts nowhere
        sums, back = on.add_up(results, out_weights)
        exact, size = np.zeros((count, hidden)), np.zeros((count, hidden))
        for choice in range(k):
            named = held[:, choice]
            part = float_of(results[made.places[named, choice]])
            exact[named] += part
            size[named] += np.abs(part)
        assert (np.abs(float_of(sums) - exact) <= size * 2.0**-8 + 1e-30).all()
        assert np.array_equal(back, np.where(held, weights, 0).astype(np.float32))


def test_what_a_failed_dispatch_leaves_points_nowhere_out_of_bounds(
    kernels: Kernels, rng: np.random.Generator, stack: ExitStack
) -> None:
    for _ in range(10):
        made = Rows(rng, 300, 7, 4)
        wild = rng.random(made.topk.shape) < 0.3
        made.topk[wild] = rng.integers(-(2**62), 2**62, int(wild.sum()))
        for counts in (made.counts, np.zeros_like(made.counts), made.counts * -(2**20)):
            made.counts = counts
            for total in (max(made.total, 1), 1):
                on = OnGpu(stack, kernels, made, total)
                found, row_of = on.places.read(), on.row_of.read()
                assert ((found >= -1) & (found < total)).all()
                assert ((row_of >= -1) & (row_of < 300)).all()


def test_the_mirrors_of_the_calls_equal_the_compiled_ones(kernels: Kernels) -> None:
    out = Array((3,), np.uint64)
    kernels.launch("places_mirror", 1, 0, ctypes.c_uint64(out.address))
    checked(driver.cuCtxSynchronize())
    calls = (places.PlacesCall, places.SpreadCall, places.SumCall)
    assert out.read().tolist() == [ctypes.sizeof(call) for call in calls]
    out.close()
