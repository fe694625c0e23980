"""Buffer's dispatch and combine between nodes, which are cores of this process, over tcp; against
float64 as test_throughput.py has it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")

from epfabric import Buffer  # noqa: E402
from epfabric.buffer import Config  # noqa: E402
from epfabric.buffer.order import Order  # noqa: E402
from epfabric.buffer.parts import Parts, alike_nodes  # noqa: E402
from epfabric.buffer.throughput import ThroughputCalls  # noqa: E402
from epfabric.cuda.channels import SIGNAL_WORDS, SOURCE, Channels  # noqa: E402
from epfabric.cuda.kernels import Kernels  # noqa: E402
from gpu.buffer_ranks import Ranks, reserve  # noqa: E402
from gpu.core_ranks import DEPTH, PAGE, through  # noqa: E402
from gpu.test_throughput import BATCHES, NARROW, Case, Replayed, check_replay, round_trip  # noqa: E402
from harness.device import Gpu, ranks_of  # noqa: E402
from native.pod import Group  # noqa: E402

RINGS = 11  # ten channels
REPLAYS = 300
APART = [[0], [1]]
PAIRS = [[0, 1], [2, 3]]
GROUPS = [
    (APART, 1, Case(2, 600, 7168, 64, 8, Config(20))),
    (APART, 1, Case(2, 300, 512, 8, 2, NARROW)),
    (PAIRS, 2, Case(4, 90, 2048, 32, 6, Config(8))),
    (PAIRS, 2, Case(4, 120, 512, 16, 4, NARROW)),
    ([[0, 1], [2, 3], [4, 5]], 2, Case(6, 40, 1024, 48, 8, Config(8))),
    ([[0], [1, 2]], 1, Case(3, 50, 512, 12, 3, Config(6))),
]


def buffer_of(end: Channels, routing: Kernels) -> Buffer:
    order = Order()
    members: Any = SimpleNamespace(rank=end.rank, size=end.world)
    parts = Parts(members, order, routing, False, bulk=ThroughputCalls(end, order))
    parts.stack.callback(order.close)
    parts.stack.callback(end.close)
    buffer = Buffer.__new__(Buffer)
    buffer._parts, buffer.rank, buffer.group_size = parts, end.rank, end.world
    buffer.explicitly_destroy = True
    return buffer


@contextmanager
def core_buffers(nodes: list[list[int]], case: Case) -> Iterator[Ranks]:
    """nodes: the ranks of each; those of one reach each other's memory."""
    home = {rank: number for number, ranks in enumerate(nodes) for rank in ranks}
    config, world = case.config, case.world
    region = Buffer.get_throughput_region_bytes(config, 2 * case.hidden, world)
    with ExitStack() as stack:
        ranks = Ranks(world)
        stack.callback(ranks.close)
        group = stack.enter_context(
            Group(
                nodes, rings=RINGS, depth=DEPTH, signals=SIGNAL_WORDS + 1,
                nbytes=-(-region // PAGE) * PAGE,
            )
        )  # fmt: skip
        kernels, routing = Kernels(SOURCE), Kernels("routing.cu")
        ends = [
            Channels(
                world, one.pod.rank, kernels, timeout_s=20.0, through=through(one),
                window_bytes=config.get_nvl_buffer_size_hint(2 * case.hidden, world),
            )
            for one in stack.enter_context(ranks_of(group))
        ]  # fmt: skip
        for rank, end in enumerate(ends):
            end.connect([o.window if home[o.rank] == home[rank] else 0 for o in ends])
        seen = {alike_nodes(world, end.rank, end.proxied) for end in ends}
        for end in ends:
            end.spread(seen.copy().pop() if len(seen) == 1 else 1)
        ranks.buffers = ranks.each(lambda rank: buffer_of(ends[rank], routing))
        torch.cuda.synchronize()
        yield ranks
        ranks.each(lambda rank: ranks.buffers[rank].destroy())
        for pod in group.pods:
            assert not any(ring["refused"] for ring in pod.session.counters()["rings"])


@pytest.mark.parametrize(
    ("nodes", "each", "case"),
    GROUPS,
    ids=lambda v: f"{v.tokens}-{v.hidden}" if isinstance(v, Case) else None,
)
def test_tokens_come_in_order_from_other_nodes_and_their_rows_come_back_summed(
    gpu: Gpu, nodes: list[list[int]], each: int, case: Case
) -> None:
    with core_buffers(nodes, case) as ranks:
        assert {one.parts.throughput.end.node_ranks for one in ranks.buffers} == {each}
        for call in range(6):
            worst = case.world * case.tokens if call % 3 == 2 else 0
            round_trip(case, ranks, fp8=call % 2 == 1, aside=call > 2, worst=worst,
                       alignment=(1, 8)[call % 2], cached=call in (1, 2))  # fmt: skip


@pytest.mark.parametrize("calls", [1, 2])
def test_a_graph_of_calls_between_nodes_is_replayed(gpu: Gpu, calls: int) -> None:
    seed = secrets.randbits(31)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    case = Case(4, 60, 1024, 16, 4, Config(8))
    with core_buffers(PAIRS, case) as ranks:
        round_trip(case, ranks)
        sides = [Replayed(case, ranks, rank, seed) for rank in range(case.world)]
        for side in sides:
            side.capture(calls, case.world * case.tokens)
        ranks.each(lambda _: reserve())  # a capture gives torch's spare memory back
        for replay in range(REPLAYS):
            looks = replay % 20 == 19
            if looks:
                torch.cuda.synchronize()
                for side in sides:
                    side.poison()
                torch.cuda.synchronize()
            for side in sides:
                side.replay(int(rng.integers(BATCHES)))
            if looks:
                torch.cuda.synchronize()
                check_replay(case, sides, case.world * case.tokens)
            if replay % 100 == 99:
                round_trip(case, ranks, fp8=replay > 150)  # without a graph
        torch.cuda.synchronize()
