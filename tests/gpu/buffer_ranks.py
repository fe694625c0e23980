"""Ranks of a Buffer as threads of this process, each with a stream, and what must come out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from cuda.bindings import driver
from epfabric import Buffer
from epfabric.cuda.rank import checked

POISON = 0xFF  # NaN in every type of floats, -1 as an integer
_STREAMS: list[Any] = []  # by rank, for all tests: torch keeps asking a stream that it has seen


class Comm:
    """As mpi4py's, among threads."""

    def __init__(self, rank: int, barrier: threading.Barrier, values: list[Any]) -> None:
        self._rank, self._barrier, self._values = rank, barrier, values

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return len(self._values)

    def allgather(self, value: Any) -> list[Any]:
        self._values[self._rank] = value
        self._barrier.wait(60)
        values = list(self._values)
        self._barrier.wait(60)
        return values


class Ranks:
    """A thread and a stream for each rank; `buffers` by rank."""

    def __init__(self, world: int) -> None:
        self.world = world
        barrier = threading.Barrier(world)
        values: list[Any] = [None] * world
        self.comms = [Comm(rank, barrier, values) for rank in range(world)]
        torch.cuda.init()
        torch.cuda.synchronize()
        while len(_STREAMS) < world:
            _STREAMS.append(torch.cuda.ExternalStream(int(checked(driver.cuStreamCreate(1)))))
        self.streams = _STREAMS[:world]
        self._pools = [ThreadPoolExecutor(1) for _ in range(world)]
        self.buffers: list[Any] = []
        self.each(lambda _: reserve())

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """work(rank) on every rank at once, on its stream; what they returned, once all is done.

        `work` launches no kernel of torch: the driver may load one only when no kernel runs, and
        those of the ranks that share this process wait for each other.
        """

        def run(rank: int) -> Any:
            torch.cuda.set_device(0)
            with torch.cuda.stream(self.streams[rank]):
                result = work(rank)
            self.streams[rank].synchronize()
            return result

        pairs = zip(self._pools, range(self.world), strict=True)
        futures = [pool.submit(run, rank) for pool, rank in pairs]
        return [future.result(120) for future in futures]

    def close(self) -> None:
        for pool in self._pools:
            pool.shutdown()


def reserve(size_bytes: int = 256 << 20) -> None:
    """Memory that torch keeps for the current stream: none has to be asked for while kernels wait
    for each other, which the driver may not grant. What is made of it next begins without a
    number in it."""
    held = [torch.empty(size_bytes, dtype=torch.uint8, device="cuda")]
    held += [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(32)]
    for one in held:
        one.fill_(POISON)


def bounded(timeout_s: float) -> type[Buffer]:
    """A Buffer whose waits end then."""
    return type("Bounded", (Buffer,), {"timeout_s": timeout_s})


@contextmanager
def buffers(world: int, timeout_s: float = 8.0, **options: Any) -> Iterator[Ranks]:
    """options: of Buffer, alike for all."""
    kind, ranks = bounded(timeout_s), Ranks(world)
    options.setdefault("explicitly_destroy", True)
    try:
        ranks.buffers = ranks.each(lambda rank: kind(None, comm=ranks.comms[rank], **options))
        yield ranks
    finally:
        ranks.each(lambda rank: ranks.buffers[rank].destroy() if ranks.buffers else None)
        ranks.close()


@dataclass(frozen=True)
class Size:
    """tokens: at most, of a rank."""

    tokens: int
    hidden: int
    experts: int
    topk: int

    @property
    def outputs_bytes(self) -> int:
        """More than what a rank's dispatch of this size makes."""
        return 4 * self.experts * self.tokens * self.hidden + (64 << 20)


@dataclass
class Batch:
    """What one rank dispatches, and the weights that it combines with."""

    x: Any  # [tokens, hidden] bfloat16
    topk: Any  # [tokens, k] int64
    weights: Any  # [tokens, k] float32

    @staticmethod
    def random(seed: int, count: int, hidden: int, experts: int, k: int) -> Batch:
        rng = torch.Generator(device="cuda").manual_seed(seed)
        like = {"device": "cuda", "generator": rng}
        scale = 2.0 ** torch.randint(-6, 6, (count, 1), **like)
        x = (torch.randn(count, hidden, **like) * scale).bfloat16()
        topk = torch.rand(count, experts, **like).argsort(dim=1)[:, :k].contiguous()
        topk[torch.rand(count, k, **like) < 0.1] = -1
        return Batch(x, topk, torch.rand(count, k, **like))


def finish(result: tuple[Any, ...], way: str) -> tuple[Any, ...]:
    """Waits as `way` says; without it the outputs are not there."""
    *_, event, hook = result
    if way == "async":
        event.current_stream_wait()
    elif way == "hook":
        hook()
    return result


def options_of(way: str) -> dict[str, bool]:
    return {"async_finish": way == "async", "return_recv_hook": way == "hook"}


def rows_of(handle: Sequence[Any], expert: int, source: int) -> slice:
    """Where `source`'s tokens lie among the expert's rows."""
    word = int(handle[1][expert, source])
    return slice(word >> 32, (word >> 32) + (word & 0xFFFFFFFF))


def dequantized(rows: Any, scales: Any) -> Any:
    """float64 of 8-bit rows and their scales, of either kind."""
    if scales.dtype == torch.int32:
        exponents = torch.stack([scales >> shift & 255 for shift in (0, 8, 16, 24)], dim=-1)
        scales = 2.0 ** (exponents.double().flatten(-2) - 127)
    return rows.double() * scales.double().repeat_interleave(128, dim=-1)


def check_received(
    batches: list[Batch], received: list[Any], experts: int, without: frozenset[int] = frozenset()
) -> None:
    """received: what each rank's low_latency_dispatch returned; without: ranks that were lost."""
    for rank, result in enumerate(received):
        if rank not in without:
            check_rows_of_experts(batches, rank, result, experts)


def check_rows_of_experts(
    batches: list[Batch], rank: int, result: tuple[Any, ...], experts: int
) -> None:
    """result: what low_latency_dispatch returned to `rank`."""
    out, counts, handle, *_ = result
    local = experts // len(batches)
    values = dequantized(*out) if isinstance(out, tuple) else out.double()
    for expert in range(local):
        end = 0
        for source, batch in enumerate(batches):
            rows = rows_of(handle, expert, source)
            tokens = handle[0][expert, rows].long()
            wanted = (batch.topk == rank * local + expert).any(dim=1).nonzero().flatten()
            assert rows.start == end
            assert torch.equal(tokens.sort().values, wanted)
            sent, got = batch.x[tokens].double(), values[expert, rows]
            if isinstance(out, tuple):
                largest = sent.reshape(len(sent), sent.shape[1] // 128, 128).abs().amax(dim=2)
                bound = (sent.abs() / 16).maximum(largest.repeat_interleave(128, 1) / 2**16)
                assert ((got - sent).abs() <= bound * 1.001 + 1e-7).all()
            else:
                assert torch.equal(got, sent)
            end = rows.stop
        assert counts[expert] == end


def check_combined(
    batches: list[Batch], received: list[Any], made: list[Any], combined: list[Any], experts: int,
    without: frozenset[int] = frozenset(),
) -> None:  # fmt: skip
    """made: [local experts, rows, hidden] of each rank. without: ranks that were lost."""
    local = experts // len(batches)
    for source, batch in enumerate(batches):
        if source in without:
            continue
        wanted = torch.zeros(batch.x.shape, dtype=torch.float64, device="cuda")
        size = torch.zeros_like(wanted)
        for rank in set(range(len(batches))) - without:
            handle = received[rank][2]
            for expert in range(local):
                rows = rows_of(handle, expert, source)
                tokens = handle[0][expert, rows].long()
                chosen = batch.topk[tokens] == rank * local + expert
                weights = (batch.weights[tokens].double() * chosen).sum(dim=1, keepdim=True)
                part = weights * made[rank][expert, rows].double()
                wanted.index_add_(0, tokens, part)
                size.index_add_(0, tokens, part.abs())
        error = (combined[source].double() - wanted).abs()
        assert (error <= size * 2.0**-7 + 1e-30).all()
