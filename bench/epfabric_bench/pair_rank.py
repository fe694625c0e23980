"""One of two ranks, each with a GPU, whose calls are timed beside those of peers; for two_gpus.py.

FILE RANK GPU,GPU ROUNDS SMALL. Rank 0 prints lines of samples. A sample is the slower rank's. What
ours and the peers bring is compared with what had to come.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from epfabric.buffer import Config
from gpu.buffer_ranks import check_rows_of_experts
from gpu.device_trips import Side, Size, low_latency_trip, throughput_trip

from .pair_peers import CALLS, EAGER, GRAPH, SYMMETRIC, Nccl, PeerCopy, Symmetric, Timed
from .series import LESS, MORE, OURS, Line

HIDDEN, LOCAL, TOPK, WORLD = 7168, 32, 8, 2
WIRE_BYTES_PER_SECOND = 396e9  # of a copy to the other GPU, measured on two H200
LOW_LATENCY, THROUGHPUT = (1, 8, 32, 128, 512), 4096
SMS = (20, 64)
WORD = 8
MEETINGS = 20  # between two events

Rounds = Callable[[], list[tuple[float, ...]]]


class Pair:
    """The two ranks, as this one sees them."""

    def __init__(self, rank: int, gpu: int, rounds: int, shared: bool) -> None:
        self.rank, self.other, self.gpu, self.rounds = rank, 1 - rank, gpu, rounds
        self.nccl = None if shared else distributed.new_group(backend="nccl")

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * WORLD
        distributed.all_gather_object(values, value)
        return values

    def slower(self, times: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
        """Of each measurement, sample by sample."""
        both = self.gather(times)
        return [tuple(map(max, *pair)) for pair in zip(*both, strict=True)]

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(text, file=sys.stderr, flush=True)

    def put(self, line: Line) -> None:
        if self.rank == 0:
            print(json.dumps(asdict(line)), flush=True)

    def measured(self, sides: dict[str, Rounds]) -> Iterator[tuple[int, dict[str, Any]]]:
        """All sides in turn, round by round; the first round warms up."""
        for number in range(-1, self.rounds):
            found = {}
            for name, seconds in sides.items():
                torch.cuda.synchronize()
                distributed.barrier()
                found[name] = self.slower(seconds())
            if number >= 0:
                yield number, found


def low_latency(pair: Pair, tokens: int) -> None:
    side = Side(WORLD, pair.rank, pair.gpu, Size(tokens, HIDDEN, LOCAL, TOPK))
    with ExitStack() as stack:
        buffer = stack.enter_context(side.low_latency())
        low_latency_trip(side, buffer, "fp8", "plain", full=True)
        batches = side.batches(side.seed(), full=True)
        mine, rows = batches[pair.rank], side.expert_rows(1.0)
        out = torch.empty_like(mine.x)
        results: list[Any] = []

        def dispatch() -> None:
            call = (mine.x, mine.topk, tokens, side.experts)
            results[:] = [buffer.low_latency_dispatch(*call)]

        def combine() -> None:
            buffer.low_latency_combine(rows, mine.topk, mine.weights, results[0][2], out=out)

        ours = Timed([dispatch, combine] * CALLS)
        counts = pair.gather(int(side.goes_to(mine, pair.other).sum()))
        shape = buffer.parts.low_latency.end.shape
        sent, answered = counts[pair.rank], counts[pair.other]
        sizes = {
            "dispatch fp8": sent * shape.message_bytes(fp8=True) + 4 * LOCAL + WORD,
            "combine bf16": answered * 2 * HIDDEN + 4 * sent * TOPK + 2 * WORD,
        }
        sides: dict[str, Rounds] = {OURS: lambda: ours.each(2)}
        sides |= peers_of(pair, stack, list(sizes.values()))
        for number, found in pair.measured(sides):
            for which, (name, size) in enumerate(sizes.items()):
                case = f"{tokens} tokens, {name}"
                put_seconds(pair, number, case, which, found)
                put_bytes(pair, number, case, size, found[OURS][which])
        check_rows_of_experts(batches, pair.rank, results[0], side.experts)
        low_latency_trip(side, buffer, "fp8", "plain", full=True)


def throughput(pair: Pair, tokens: int, sms: int) -> None:
    side = Side(WORLD, pair.rank, pair.gpu, Size(tokens, HIDDEN, LOCAL, TOPK))
    config = Config(sms)
    with ExitStack() as stack:
        buffer = stack.enter_context(side.throughput(config))
        throughput_trip(side, buffer, 0, config, full=True)
        batches = side.batches(side.seed(), full=True)
        mine = batches[pair.rank]
        results: list[Any] = []
        by_rank, _, by_expert, flags, _ = buffer.get_dispatch_layout(mine.topk, side.experts)

        def dispatch() -> None:
            results[:] = [
                buffer.dispatch(
                    mine.x, num_tokens_per_rank=by_rank, is_token_in_rank=flags,
                    num_tokens_per_expert=by_expert, topk_idx=mine.topk,
                    topk_weights=mine.weights, num_worst_tokens=WORLD * tokens, config=config,
                )
            ]  # fmt: skip

        def combine() -> None:
            buffer.combine(results[0][0], results[0][4], config=config)

        ours = Timed([dispatch, combine] * CALLS)
        counts = pair.gather(int(flags[:, pair.other].sum()))
        sizes = {
            "dispatch bf16": counts[pair.rank] * 2 * HIDDEN,
            "combine bf16": counts[pair.other] * 2 * HIDDEN,
        }
        sides: dict[str, Rounds] = {OURS: lambda: ours.each(2)}
        copies = [stack.enter_context(PeerCopy(pair, size)) for size in sizes.values()]
        sides[PeerCopy.NAME] = lambda: [copy.seconds() for copy in copies]
        sides |= peers_of(pair, stack, list(sizes.values()))
        for number, found in pair.measured(sides):
            for which, (name, size) in enumerate(sizes.items()):
                case = f"{tokens} tokens, {sms} SMs, {name}"
                put_seconds(pair, number, case, which, found)
                for who in (OURS, PeerCopy.NAME):
                    rate = tuple(size / seconds for seconds in found[who][which])
                    metric = "nvlink_bytes_per_second"
                    pair.put(Line(case, metric, "B/s", MORE, who, number, True, rate))
        throughput_trip(side, buffer, 0, config, full=True)


def barrier(pair: Pair) -> None:
    """What begins every high-throughput call: all ranks meet."""
    side = Side(WORLD, pair.rank, pair.gpu, Size(1, HIDDEN, LOCAL, TOPK))
    with ExitStack() as stack:
        buffer = stack.enter_context(side.throughput(Config(2)))

        def meet() -> None:
            for _ in range(MEETINGS):
                buffer.parts.throughput.meet()

        ours = Timed([meet] * CALLS)
        sides: dict[str, Rounds] = {OURS: lambda: ours.each(1)}
        if pair.nccl is not None:
            symmetric = Symmetric(pair, 16)
            theirs = Timed([lambda: symmetric.meet(MEETINGS)] * CALLS)
            sides[SYMMETRIC] = lambda: theirs.each(1)
        for number, found in pair.measured(sides):
            for who, samples in found.items():
                each = tuple(seconds / MEETINGS for seconds in samples[0])
                pair.put(Line("two GPUs", "barrier_seconds", "s", LESS, who, number, True, each))
        assert buffer.parts.throughput.end.failure() is None


def peers_of(pair: Pair, stack: ExitStack, sizes: list[int]) -> dict[str, Rounds]:
    """Each moves as many bytes from either GPU to the other as ours does, call by call."""
    if pair.nccl is None:
        return {}
    nccl = [Nccl(pair, size) for size in sizes]
    symmetric = [Symmetric(pair, size) for size in sizes]
    return {
        GRAPH: lambda: [one.in_graph() for one in nccl],
        EAGER: lambda: [one.eager() for one in nccl],
        SYMMETRIC: lambda: [one.seconds() for one in symmetric],
    }


BESIDE = {GRAPH: "seconds", EAGER: "seconds_beside_eager", SYMMETRIC: "seconds_beside_symmetric"}


def put_seconds(pair: Pair, number: int, case: str, which: int, found: dict[str, Any]) -> None:
    """Ours stands beside each peer."""
    for peer, metric in BESIDE.items():
        if peer not in found and peer != GRAPH:
            continue
        for who in (OURS, peer):
            if who in found:
                samples = found[who][which]
                pair.put(Line(case, metric, "s", LESS, who, number, True, samples))


def put_bytes(pair: Pair, number: int, case: str, size: int, samples: tuple[float, ...]) -> None:
    pair.put(Line(case, "nvlink_bytes", "B", LESS, OURS, number, True, (float(size),)))
    floor = size / WIRE_BYTES_PER_SECOND
    over = tuple(seconds / floor for seconds in samples)
    pair.put(Line(case, "times_the_wire_floor", "1", LESS, OURS, number, True, over))


def main() -> None:
    file, rank, gpus = sys.argv[1], int(sys.argv[2]), [int(gpu) for gpu in sys.argv[3].split(",")]
    rounds, small = int(sys.argv[4]), bool(int(sys.argv[5]))
    torch.cuda.set_device(gpus[rank])
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", world_size=WORLD, rank=rank,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    pair = Pair(rank, gpus[rank], rounds, shared=gpus[0] == gpus[1])
    for tokens in (8,) if small else LOW_LATENCY:
        pair.say(f"{tokens} tokens, low latency")
        low_latency(pair, tokens)
    for sms in SMS[:1] if small else SMS:
        pair.say(f"{sms} multiprocessors, high throughput")
        throughput(pair, 64 if small else THROUGHPUT, sms)
    barrier(pair)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
