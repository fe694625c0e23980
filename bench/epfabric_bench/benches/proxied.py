"""Low-latency dispatch and combine of two ranks on two nodes, which are two cores of this process
over tcp, on one GPU; beside a device copy, and fi_pingpong of as many bytes.

Kernels, proxies and network are those of agents; payload lies in host memory. Otherwise as
`low_latency`.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np

from ..run import Bench, Run
from ..series import LESS, OURS, Line
from .low_latency import (
    COPY,
    EXPERTS,
    HIDDEN,
    RANKS,
    TOPK,
    Calls,
    Copies,
    line,
    moved_bytes,
    rounds,
)
from .transport import PEER, ping_pong

if TYPE_CHECKING:
    from gpu.expert_ranks import Batch, Rank

NODES = [[0], [1]]
TOKENS = (1, 8, 32, 128, 512)
PINGED = (1, 32, 512)  # so many tokens stand beside fi_pingpong
PINGED_BYTES = 4 << 20  # of one run of it, but for a few trips at least


def measure(run: Run) -> list[Line]:
    from cuda.core import Device
    from epfabric.cuda.kernels import Kernels
    from epfabric.cuda.low_latency import SOURCE

    Device(0).set_current()
    kernels = Kernels(SOURCE)
    lines: list[Line] = []
    rng = np.random.default_rng()
    for tokens in (4,) if run.small else TOKENS:
        for fp8 in (False, True):
            run.say(f"{tokens} tokens, {'fp8, weights with the tokens' if fp8 else 'bf16'}")
            lines += case(kernels, rng, run, tokens, fp8)
    return lines


def case(kernels: Any, rng: np.random.Generator, run: Run, tokens: int, fp8: bool) -> list[Line]:
    from epfabric.cuda.window import Shape
    from gpu.core_ranks import core_ranks
    from gpu.expert_ranks import Batch

    shape = Shape(RANKS, EXPERTS, tokens, HIDDEN, TOPK)
    with ExitStack() as stack:
        kinds = (fp8,)
        ranks = stack.enter_context(core_ranks(kernels, shape, NODES, kinds=kinds, idle="spin"))
        batches = [Batch.random(rng, shape, tokens, none=0.0) for _ in ranks]
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
        check(ranks, rng)
    names = ("dispatch fp8", "combine, weights there") if fp8 else ("dispatch bf16", "combine")
    lines: list[Line] = []
    for number, ours, peers, host in timed:
        for which, name in enumerate(names):
            text = f"{tokens} tokens, {name}"
            lines.append(line(text, OURS, number, ours[which]))
            lines.append(line(text, COPY, number, peers[which]))
        if not fp8:
            text, metric = f"{tokens} tokens", "host_seconds_a_call"
            lines.append(Line(text, metric, "s", LESS, OURS, number, True, (host,)))
        if not fp8 and tokens in PINGED:
            text = f"{tokens} tokens, {names[0]}"
            lines += beside_ping_pong(run, text, number, ours[0], sent_bytes(shape, batches[0]))
    return lines


def beside_ping_pong(
    run: Run, text: str, number: int, ours: tuple[float, ...], sent: int
) -> list[Line]:
    """The peer tells the mean of a run only, so that ours is compared as a mean too."""
    trips = min(1000, max(10, PINGED_BYTES // sent))
    theirs, mean = ping_pong(run, sent, trips), sum(ours) / len(ours)
    metric = "seconds_beside_ping_pong"
    return [
        Line(text, metric, "s", LESS, OURS, number, True, (mean,)),
        Line(text, metric, "s", LESS, PEER, number, True, (theirs,)),
    ]


def sent_bytes(shape: Any, batch: Batch) -> int:
    """Of the messages that rank 0 sends to the other rank in a dispatch in bfloat16."""
    there = (batch.topk // shape.local_experts == 1).any(axis=1)
    return int(there.sum()) * int(shape.message_bytes(fp8=False)) or 16


def check(ranks: list[Rank], rng: np.random.Generator) -> None:
    """What the last dispatch brought, and a combine of rows that experts might have made."""
    from gpu.expert_ranks import came, check_combine, check_dispatch, expert_rows

    check_dispatch(ranks)
    made = expert_rows(ranks, rng)  # rows move with each dispatch
    for rank in ranks:
        rank.combine()
    came(ranks)
    check_combine(ranks, made)


def missing() -> str | None:
    for program, what in (("nvidia-smi", "NVIDIA GPU"), (PEER, PEER)):
        if shutil.which(program) is None:
            return f"no {what} here"
    return None


BENCH = Bench(
    "proxied",
    "low-latency dispatch and combine of two ranks on two nodes, which are cores here, over tcp",
    measure,
    missing=missing,
    native=False,
)
