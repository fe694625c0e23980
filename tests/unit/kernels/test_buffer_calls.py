"""What a buffer's calls do before and after its kernels, with stand-ins for those and for torch."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from epfabric import SessionError
from epfabric.buffer import Config, ElasticBuffer, low_latency
from epfabric.buffer.elastic_calls import _with_floats
from epfabric.buffer.parts import Parts
from epfabric.buffer.throughput import ThroughputCalls, ThroughputHandle
from epfabric.cuda.channels import fitting
from epfabric.cuda.low_latency import CombineCall, DispatchCall

INT, FLOAT = np.dtype("int32"), np.dtype("float32")


class Launched(Exception):
    """The first kernel was."""


class Scales:
    """In columns; `copied` on these streams."""

    shape = (5, 2)

    def __init__(self, current: list[Any]) -> None:
        self._current, self.copied = current, list[Any]()

    def contiguous(self) -> Scales:
        self.copied.append(self._current[-1])
        return self


def test_scales_in_columns_are_copied_on_the_stream_of_the_call() -> None:
    """Nothing orders what another stream does before the kernels that read them."""
    current: list[Any] = ["the application's"]
    own = SimpleNamespace(cuda_stream=1)

    @contextmanager
    def stream(which: Any) -> Iterator[None]:
        current.append(which)
        yield
        current.pop()

    def meet(*_: Any, **__: Any) -> None:
        raise Launched

    calls: Any = ThroughputCalls.__new__(ThroughputCalls)
    calls._torch = SimpleNamespace(cuda=SimpleNamespace(stream=stream))
    calls._order = SimpleNamespace(begin=lambda *_: own)
    fit = partial(fitting, 1 << 26, 1)
    calls.end = SimpleNamespace(world=1, proxied=(), failure=lambda: None, meet=meet, fit=fit)
    handle = ThroughputHandle((None,) * 5)
    handle.channels, handle.rows = 2, 5
    codes = SimpleNamespace(
        shape=(5, 256), dim=lambda: 2, is_contiguous=lambda: True, is_cuda=True,
        element_size=lambda: 1,
    )  # fmt: skip
    scales = Scales(current)
    with pytest.raises(Launched):
        calls.dispatch(
            (codes, scales), handle, (None, None, None), None, None,
            alignment=1, worst=0, config=Config(4), after=None, aside=True,
        )  # fmt: skip
    assert scales.copied == [own]


def test_packed_scales_travel_as_floats_without_a_copy() -> None:
    torch, codes = SimpleNamespace(int32=INT, float32=FLOAT), np.zeros((4, 8))
    for scales in (np.ones((4, 2), dtype=INT), np.ones((2, 4), dtype=INT).T):
        values, floats = _with_floats(torch, (codes, scales))
        assert values is codes
        assert floats.dtype is FLOAT
        assert np.shares_memory(floats, scales)
    for unpacked in (codes, (codes, None), (codes, np.ones((4, 2), dtype=FLOAT))):
        assert _with_floats(torch, unpacked) is unpacked


def test_no_call_of_a_destroyed_buffer_reaches_its_freed_memory() -> None:
    buffer = ElasticBuffer.__new__(ElasticBuffer)
    buffer.explicitly_destroy = buffer.prefer_overlap_with_compute = True
    buffer.num_max_tokens_per_rank = 16
    parts: Any = SimpleNamespace(close=lambda: None)
    buffer._parts = parts
    buffer.destroy()
    x, handle = np.zeros((5, 8)), SimpleNamespace(do_expand=False)
    calls: list[Callable[[], Any]] = [
        lambda: buffer.dispatch(x, x, num_experts=4),
        lambda: buffer.combine(x, handle),  # type: ignore[arg-type]
        buffer.get_comm_stream,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="was destroyed"):
            call()


@pytest.mark.parametrize("fault", ["", "CUDA: an illegal address"])
def test_a_buffer_whose_group_fails_while_it_closes_frees_all(fault: str) -> None:
    done: list[str] = []
    reasons = iter([None])  # then it has failed

    def meet(*_: Any, **__: Any) -> None:
        done.append("met")
        if fault:
            raise SessionError(fault)

    calls: Any = ThroughputCalls.__new__(ThroughputCalls)
    stream = SimpleNamespace(cuda_stream=1)
    calls._order = SimpleNamespace(begin=lambda *_: stream, end=lambda *_: None)
    calls.end = SimpleNamespace(
        world=1,
        failure=lambda: next(reasons, "the group failed"),
        meet=meet,
        fit=partial(fitting, 1 << 26, 1),
    )
    order: Any = calls._order
    nothing: Any = None
    parts = Parts(nothing, order, nothing, False, bulk=calls)
    parts.stack.callback(done.append, "freed")
    with suppress(SessionError, RuntimeError):  # without a GPU there is nothing to synchronise with
        parts.close()
    assert done == ["met", "freed"]


@pytest.mark.parametrize(
    ("packed", "call"),
    [(low_latency._DISPATCH, DispatchCall), (low_latency._COMBINE, CombineCall)],
)
def test_a_call_that_is_written_at_once_has_each_value_in_its_own_field(
    packed: struct.Struct, call: type[ctypes.Structure]
) -> None:
    made = call()
    names = [field[0] for field in call._fields_]
    packed.pack_into(made, 0, *range(1, len(names) + 1))
    assert [getattr(made, name) for name in names] == list(range(1, len(names) + 1))
