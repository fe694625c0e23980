"""Buffer's dispatch and combine between two nodes, which are two cores of this process over tcp, of
one and of two ranks that share a GPU; beside a device copy, and fi_pingpong of as many bytes.

Kernels, proxies and network are those of agents; what goes between the nodes lies in host memory.
Otherwise as `buffer`.
"""

from __future__ import annotations

import shutil
from typing import Any

from ..run import Bench, Run
from ..series import OURS, Line
from . import buffer
from .buffer import COPY, EXPERTS, HIDDEN, TOPK, Side, check, copy_seconds
from .low_latency import line
from .proxied import beside_ping_pong
from .transport import PEER

NODES = ([[0], [1]], [[0, 1], [2, 3]])
TOKENS = {128: 6, 512: 4, 4096: 3}  # of each rank; calls in a graph: the first does not count
PINGED = 512  # so many tokens of nodes of one rank stand beside fi_pingpong
SMS = 20  # of each rank
PROXIES = 2  # of each rank


def measure(run: Run) -> list[Line]:
    from epfabric.buffer import Config
    from gpu.core_buffers import core_buffers

    config = Config(SMS)
    lines: list[Line] = []
    for nodes in NODES:
        cases = []
        with core_buffers(nodes, config, HIDDEN, proxies=PROXIES, idle="spin") as ranks:
            for tokens, calls in ({16: 2} if run.small else TOKENS).items():
                run.say(f"{tokens} tokens, 2 nodes of {len(nodes[0])}")
                cases.append(Case(run, ranks, nodes, tokens, config, calls))
        for one in cases:  # no proxy spins any more
            lines += one.lines
            if len(nodes[0]) == 1 and one.tokens == PINGED:
                for number, ours in enumerate(one.dispatches):
                    lines += beside_ping_pong(run, f"{one.text}, dispatch", number, ours, one.sent)
    return lines


class Case:
    """Measured and checked when it is made."""

    def __init__(
        self, run: Run, ranks: Any, nodes: list[list[int]], tokens: int, config: Any, calls: int
    ) -> None:
        import torch
        from gpu.buffer_ranks import Batch

        self.tokens, self.text = tokens, f"{tokens} tokens, 2 nodes of {len(nodes[0])}"
        self.lines: list[Line] = []
        self.dispatches: list[tuple[float, ...]] = []  # by round
        world = range(ranks.world)
        batches = [Batch.random(rank, tokens, HIDDEN, EXPERTS, TOPK) for rank in world]
        torch.cuda.synchronize()
        sides = [Side(ranks, rank, batches[rank], config, calls) for rank in world]
        ranks.each(lambda rank: sides[rank].graph.replay())
        check(sides, batches)
        moved, self.sent = bytes_of(nodes, sides, tokens)
        source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        for number in range(-1, run.rounds):  # the first one warms up
            ranks.each(lambda rank: sides[rank].graph.replay())
            times = [side.seconds() for side in sides]
            copies = copy_seconds(source, target)
            if number >= 0:
                ours = [tuple(map(max, *(one[which] for one in times))) for which in (0, 1)]
                self.dispatches.append(ours[0])
                for name, seconds in zip(("dispatch", "combine"), ours, strict=True):
                    self.lines.append(line(f"{self.text}, {name}", OURS, number, seconds))
                    self.lines.append(line(f"{self.text}, {name}", COPY, number, copies))
        check(sides, batches)


def bytes_of(nodes: list[list[int]], sides: list[Side], tokens: int) -> tuple[int, int]:
    """What all kernels read and write in a dispatch; what goes from the first node to the other.

    A token is read once. On its own node it is written once where it stays on its rank, else to a
    ring, read there and written. To another node it is written once, and read there once; then as
    on its own.
    """
    rows = len(sides) * tokens
    sent = 0
    for source, side in enumerate(sides):
        for node in nodes:
            flags = side.flags[:, node]
            if source not in node:
                goes = int(flags.any(dim=1).sum())
                rows += 2 * goes
                sent += goes if source in nodes[0] else 0
            rail = node[source % len(node)]  # it comes to this one
            stay = int(side.flags[:, rail].sum())
            rows += stay + 3 * (int(flags.sum()) - stay)
    return 2 * HIDDEN * rows, 2 * HIDDEN * sent


def missing() -> str | None:
    return buffer.missing() or (None if shutil.which(PEER) else f"no {PEER} here")


BENCH = Bench(
    "internode",
    "Buffer's dispatch and combine between two nodes, which are cores here, over tcp",
    measure,
    missing=missing,
    native=False,
)
