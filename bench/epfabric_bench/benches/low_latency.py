"""Dispatch and combine of two ranks that share a GPU, beside a device copy of the same bytes.

Each rank has half of the processors and replays a CUDA graph of its calls, so that the host does
not set the pace. What the last call brought is compared with numpy.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..run import Bench, Run
from ..series import LESS, OURS, Limit, Line

if TYPE_CHECKING:
    from gpu.expert_ranks import Batch, Rank

HIDDEN, EXPERTS, TOPK, RANKS = 7168, 64, 8, 2
TOKENS = (1, 8, 32, 128, 512, 4096)
COPY = "device copy of the bytes that are read and written"
CALLS = 12  # in a graph; the first two are not counted
SKIPPED = 2


@dataclass(frozen=True)
class Moved:
    """Bytes that the kernels of all ranks read and write in one call."""

    dispatch: int
    combine: int


def moved_bytes(batches: list[Batch], fp8: bool) -> Moved:
    """Each token is read, written and read once a destination rank, and written once an expert."""
    row, small = 2 * HIDDEN, HIDDEN + HIDDEN // 128 * 4 if fp8 else 2 * HIDDEN
    dispatch = combine = 0
    for batch in batches:
        ranks = np.where(batch.topk < 0, -1, batch.topk // (EXPERTS // RANKS))
        copies = sum(int((ranks == rank).any(axis=1).sum()) for rank in range(RANKS))
        choices = int((batch.topk >= 0).sum())
        dispatch += len(batch.topk) * row + 2 * copies * small + choices * small
        combine += choices * row + 2 * copies * row + len(batch.topk) * row
    return Moved(dispatch, combine)


def measure(run: Run) -> list[Line]:
    from cuda.core import Device
    from epfabric.cuda.kernels import Kernels
    from epfabric.cuda.low_latency import SOURCE

    Device(0).set_current()
    kernels = Kernels(SOURCE)
    lines: list[Line] = []
    rng = np.random.default_rng()
    for tokens in (4, 16) if run.small else TOKENS:
        for fp8 in (False, True):
            run.say(f"{tokens} tokens, {'fp8, weights with the tokens' if fp8 else 'bf16'}")
            lines += case(kernels, rng, run, tokens, fp8)
    return lines


def case(kernels: Any, rng: np.random.Generator, run: Run, tokens: int, fp8: bool) -> list[Line]:
    """With fp8 the weights go with the tokens, so that the combine need not send them first."""
    from epfabric.cuda.window import Shape
    from gpu.expert_ranks import Batch, check_combine, check_dispatch, expert_ranks, expert_rows

    shape = Shape(RANKS, EXPERTS, tokens, HIDDEN, TOPK)
    lines: list[Line] = []
    with ExitStack() as stack:
        ranks = stack.enter_context(expert_ranks(kernels, shape, fp8=fp8, sets=1))
        batches = [Batch.random(rng, shape, tokens, none=0.0) for _ in ranks]
        begin = time.perf_counter()
        for rank, batch in zip(ranks, batches, strict=True):
            rank.sets[0].take(batch)
            rank.sets[0].early = fp8
        for rank in ranks:
            rank.dispatch(None)
        for rank in ranks:
            rank.sync()
        moved = moved_bytes(batches, fp8)
        sides = [Calls(rank) for rank in ranks]
        copies = [Copies(moved.dispatch), Copies(moved.combine)]
        for side in sides:
            stack.callback(side.close)
        for copy in copies:
            stack.callback(copy.close)
        timed = list(rounds(sides, copies, run))
        run.say(f"measured in {time.perf_counter() - begin:.1f} s; now the check")
        check_dispatch(ranks)
        made = expert_rows(ranks, rng)  # rows move with each dispatch
        for rank in ranks:
            rank.combine()
        for rank in ranks:
            rank.sync()
        check_combine(ranks, made)
        assert all(rank.end.failure() is None for rank in ranks)
        names = ("dispatch fp8", "combine, weights there") if fp8 else ("dispatch bf16", "combine")
        for number, ours, peers, host in timed:
            for which, name in enumerate(names):
                text = f"{tokens} tokens, {name}"
                lines.append(line(text, OURS, number, ours[which]))
                lines.append(line(text, COPY, number, peers[which]))
            if not fp8:
                lines.append(
                    Line(
                        f"{tokens} tokens",
                        "host_seconds_a_call",
                        "s",
                        LESS,
                        OURS,
                        number,
                        True,
                        (host,),
                    )
                )
    return lines


def line(case: str, side: str, number: int, seconds: tuple[float, ...]) -> Line:
    return Line(case, "seconds", "s", LESS, side, number, True, seconds)


def rounds(
    sides: list[Calls], copies: list[Copies], run: Run
) -> Iterator[tuple[int, list[tuple[float, ...]], list[tuple[float, ...]], float]]:
    """Ours and the copies in turn; the slower rank counts."""
    for number in range(-1, run.rounds):  # the first one warms up
        for one in sides:
            one.launch()
        each = [one.seconds() for one in sides]
        ours = [tuple(map(max, *(times[which] for times in each))) for which in (0, 1)]
        peers = [copy.seconds() for copy in copies]
        host = host_seconds(sides)
        if number >= 0:
            yield number, ours, peers, host


def host_seconds(sides: list[Calls]) -> float:
    """What a call costs the host when the GPU does not hold it up."""
    begin = time.perf_counter()
    for _ in range(4):
        for one in sides:
            one.rank.dispatch(None)
            one.rank.combine()
    each = (time.perf_counter() - begin) / (8 * len(sides))
    for one in sides:
        one.rank.sync()
    return each


class Timed:
    """A graph of calls with an event before, between and after."""

    def __init__(self, stream: Any, calls: list[Callable[[], None]]) -> None:
        from cuda.bindings import driver
        from epfabric.cuda.rank import checked

        self._checked, self._driver, self._stream = checked, driver, stream
        self._events = [checked(driver.cuEventCreate(0)) for _ in range(len(calls) + 1)]
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(driver.cuStreamSynchronize(stream))
        checked(driver.cuStreamBeginCapture(stream, mode))
        external = 1  # CU_EVENT_RECORD_EXTERNAL: the event can be asked outside of the graph
        checked(driver.cuEventRecordWithFlags(self._events[0], stream, external))
        for call, event in zip(calls, self._events[1:], strict=True):
            call()
            checked(driver.cuEventRecordWithFlags(event, stream, external))
        graph = checked(driver.cuStreamEndCapture(stream))
        self._graph = checked(driver.cuGraphInstantiate(graph, 0))

    def launch(self) -> None:
        self._checked(self._driver.cuGraphLaunch(self._graph, self._stream))

    def intervals(self) -> list[float]:
        """Seconds of each call, once all have ended."""
        self._checked(self._driver.cuStreamSynchronize(self._stream))
        pairs = zip(self._events, self._events[1:], strict=False)
        elapsed = self._driver.cuEventElapsedTime
        return [float(self._checked(elapsed(one, two))) / 1e3 for one, two in pairs]

    def close(self) -> None:
        self._checked(self._driver.cuGraphExecDestroy(self._graph))
        for event in self._events:
            self._checked(self._driver.cuEventDestroy(event))


class Calls:
    """A rank's dispatches and combines, in turn."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._timed = Timed(rank.stream, [lambda: rank.dispatch(None), rank.combine] * CALLS)

    def launch(self) -> None:
        self._timed.launch()

    def seconds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of dispatches, of combines."""
        times = self._timed.intervals()[2 * SKIPPED :]
        return tuple(times[0::2]), tuple(times[1::2])

    def close(self) -> None:
        self._timed.close()


class Copies:
    """Device copies that read and write so many bytes in all."""

    def __init__(self, moved: int) -> None:
        from cuda.bindings import driver
        from epfabric.cuda.rank import checked

        self._driver, self._checked = driver, checked
        half = moved // 2
        self._stream = checked(driver.cuStreamCreate(1))
        self._from, self._to = (checked(driver.cuMemAlloc(half)) for _ in range(2))
        self._timed = Timed(
            self._stream,
            [lambda: checked(driver.cuMemcpyDtoDAsync(self._to, self._from, half, self._stream))]
            * CALLS,
        )

    def seconds(self) -> tuple[float, ...]:
        self._timed.launch()
        return tuple(self._timed.intervals()[SKIPPED:])

    def close(self) -> None:
        self._timed.close()
        for address in (self._from, self._to):
            self._checked(self._driver.cuMemFree(address))
        self._checked(self._driver.cuStreamDestroy(self._stream))


def missing() -> str | None:
    return None if shutil.which("nvidia-smi") else "no NVIDIA GPU here"


BENCH = Bench(
    "low_latency",
    "dispatch and combine of two ranks on one GPU",
    measure,
    (Limit("host_seconds_a_call", None, 20e-6),),
    missing,
)
