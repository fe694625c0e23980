"""Buffers of ranks on several nodes, each a core of this process that the others reach over tcp,
all on this GPU; with high-throughput calls only, for tests and benches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from epfabric import Buffer
from epfabric.buffer import Config
from epfabric.buffer.order import Order
from epfabric.buffer.parts import Parts, alike_nodes
from epfabric.buffer.throughput import ThroughputCalls
from epfabric.cuda.channels import SIGNAL_WORDS, SOURCE, Channels
from epfabric.cuda.kernels import Kernels
from gpu.buffer_ranks import Ranks
from gpu.core_ranks import DEPTH, PAGE, through
from harness.device import ranks_of
from native.pod import Group

RINGS = 11  # ten channels


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
def core_buffers(
    nodes: list[list[int]], config: Config, hidden: int, *, proxies: int = 1,
    idle: str = "adaptive",
) -> Iterator[Ranks]:  # fmt: skip
    """nodes: the ranks of each; those of one reach each other's memory. proxies: of each rank. No
    command may be refused."""
    home = {rank: number for number, ranks in enumerate(nodes) for rank in ranks}
    world = len(home)
    region = Buffer.get_throughput_region_bytes(config, 2 * hidden, world)
    with ExitStack() as stack:
        ranks = Ranks(world)
        stack.callback(ranks.close)
        group = stack.enter_context(
            Group(
                nodes, rings=RINGS, depth=DEPTH, signals=SIGNAL_WORDS + 1,
                nbytes=-(-region // PAGE) * PAGE, proxies=proxies, idle=idle,
            )
        )  # fmt: skip
        kernels, routing = Kernels(SOURCE), Kernels("routing.cu")
        routing.function("route_tokens")  # while no kernel runs
        ends = [
            Channels(
                world, one.pod.rank, kernels, timeout_s=20.0, through=through(one),
                window_bytes=config.get_nvl_buffer_size_hint(2 * hidden, world),
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
