"""What the calls of two ranks are compared with, and how both are timed; for pair_rank.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as distributed

if TYPE_CHECKING:
    from .pair_rank import Pair

CALLS, SKIPPED = 12, 2  # in a graph; the first ones are not counted
GRAPH = "NCCL all_to_all_single in a CUDA graph"
EAGER = "NCCL all_to_all_single, eager"
SYMMETRIC = "torch symmetric memory: copy and barrier in a CUDA graph"


class Timed:
    """A CUDA graph of calls with an event before, between and after."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        count = len(calls) + 1
        self._events = [torch.cuda.Event(enable_timing=True, external=True) for _ in range(count)]
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # NCCL has a thread of its own, which asks for events meanwhile.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._events[0].record()
            for call, event in zip(calls, self._events[1:], strict=True):
                call()
                event.record()

    def each(self, kinds: int) -> list[tuple[float, ...]]:
        """Seconds of each call, by kind: calls of so many kinds take turns."""
        self._graph.replay()
        torch.cuda.synchronize()
        return intervals(self._events, kinds)


def intervals(events: list[Any], kinds: int) -> list[tuple[float, ...]]:
    pairs = list(itertools.pairwise(events))[SKIPPED * kinds :]
    times = [one.elapsed_time(two) / 1e3 for one, two in pairs]
    return [tuple(times[kind::kinds]) for kind in range(kinds)]


def pattern(size: int, seed: int) -> Any:
    rng = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=rng)


class Nccl:
    """As many bytes to the other rank; nothing to oneself."""

    def __init__(self, pair: Pair, size: int) -> None:
        sizes = pair.gather(size)
        self._group, comes = pair.nccl, sizes[pair.other]
        self._in = pattern(size, pair.rank)
        self._out = torch.zeros(comes, dtype=torch.uint8, device="cuda")
        self._splits = [[0, comes][:: 1 - 2 * pair.rank], [0, size][:: 1 - 2 * pair.rank]]
        self._call()
        torch.cuda.synchronize()
        assert torch.equal(self._out, pattern(comes, pair.other))
        self._timed = Timed([self._call] * CALLS)
        self._out.zero_()
        self.in_graph()
        assert torch.equal(self._out, pattern(comes, pair.other))
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]

    def _call(self) -> None:
        distributed.all_to_all_single(self._out, self._in, *self._splits, group=self._group)

    def in_graph(self) -> tuple[float, ...]:
        return self._timed.each(1)[0]

    def eager(self) -> tuple[float, ...]:
        self._events[0].record()
        for event in self._events[1:]:
            self._call()
            event.record()
        torch.cuda.synchronize()
        return intervals(self._events, 1)[0]


class Symmetric:
    """A copy into the other rank's part, and the barrier after which it is there."""

    def __init__(self, pair: Pair, size: int) -> None:
        import torch.distributed._symmetric_memory as symmetric

        sizes = pair.gather(size)
        here = symmetric.empty(max(sizes), dtype=torch.uint8, device=f"cuda:{pair.gpu}")
        self._handle = symmetric.rendezvous(here, distributed.group.WORLD)
        self._there = self._handle.get_buffer(pair.other, (size,), torch.uint8)
        self._from = pattern(size, pair.rank)
        self._timed = Timed([self._call] * CALLS)
        self.seconds()
        distributed.barrier()
        assert torch.equal(here[: sizes[pair.other]], pattern(sizes[pair.other], pair.other))

    def meet(self, times: int = 1) -> None:
        for _ in range(times):
            self._handle.barrier()

    def _call(self) -> None:
        self._there.copy_(self._from)
        self.meet()

    def seconds(self) -> tuple[float, ...]:
        return self._timed.each(1)[0]


class PeerCopy:
    """Copies into memory of the other GPU, by the driver."""

    NAME = "copy to the other GPU"

    def __init__(self, pair: Pair, size: int) -> None:
        from cuda.bindings import driver
        from epfabric.buffer.members import Gathering, Opened
        from epfabric.cuda.rank import checked

        self._driver, self._checked, self._size = driver, checked, size
        self._sizes = pair.gather(size)
        self._window = Opened(Gathering(pair.rank, 2, pair.gather), max(self._sizes))
        self._to, self._from = self._window.addresses[pair.other], pattern(size, pair.rank)
        self._timed = Timed([self._copy] * CALLS)
        self.seconds()
        distributed.barrier()
        self._check(pair)

    def _check(self, pair: Pair) -> None:
        from epfabric.buffer.tensors import view_of

        comes = self._sizes[pair.other]
        came = view_of(self._window.own.address, comes, torch.uint8)
        assert torch.equal(came, pattern(comes, pair.other))

    def _copy(self) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        copy = self._driver.cuMemcpyDtoDAsync
        self._checked(copy(self._to, self._from.data_ptr(), self._size, stream))

    def seconds(self) -> tuple[float, ...]:
        return self._timed.each(1)[0]

    def __enter__(self) -> PeerCopy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torch.cuda.synchronize()
        distributed.barrier()
        self._window.close()
        distributed.barrier()
        self._window.own.close()
