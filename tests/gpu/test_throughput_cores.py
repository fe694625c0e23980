"""Buffer's dispatch and combine between nodes, which are cores of this process, over tcp; against
float64 as test_throughput.py has it."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="epfabric.Buffer works on torch's tensors")

from epfabric.buffer import Config  # noqa: E402
from gpu.buffer_ranks import reserve  # noqa: E402
from gpu.core_buffers import core_buffers  # noqa: E402
from gpu.test_throughput import BATCHES, NARROW, Case, Replayed, check_replay, round_trip  # noqa: E402
from harness.device import Gpu  # noqa: E402

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


@pytest.mark.parametrize(
    ("nodes", "each", "case"),
    GROUPS,
    ids=lambda v: f"{v.tokens}-{v.hidden}" if isinstance(v, Case) else None,
)
def test_tokens_come_in_order_from_other_nodes_and_their_rows_come_back_summed(
    gpu: Gpu, nodes: list[list[int]], each: int, case: Case
) -> None:
    with core_buffers(nodes, case.config, case.hidden) as ranks:
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
    with core_buffers(PAIRS, case.config, case.hidden) as ranks:
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
