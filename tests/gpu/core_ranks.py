"""Ranks of several nodes, each a core of this process that the others reach over tcp, all on this
GPU: kernel, FIFO, proxy, network, signal, without an agent's sockets; for tests and benches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from cuda.bindings import driver
from epfabric.cuda.kernels import Kernels
from epfabric.cuda.low_latency import SIGNAL_WORDS, LowLatency, Through
from epfabric.cuda.rank import checked
from epfabric.cuda.window import Shape, region_bytes
from epfabric.layout import AGENT_ABORT
from epfabric.lending import FIRST_RING
from gpu.expert_ranks import Rank
from harness.device import Rank as RankOfCore
from harness.device import ranks_of
from native.pod import Group

PAGE = 4096
RINGS, DEPTH = 5, 1024


@contextmanager
def core_ranks(
    kernels: Kernels, shape: Shape, nodes: list[list[int]], *, kinds: Sequence[bool] = (False,),
    timeout_s: float = 20.0, proxies: int = 1, idle: str = "adaptive",
) -> Iterator[list[Rank]]:  # fmt: skip
    """By rank, as expert_ranks(). nodes: the ranks of each; those of one reach each other's memory.

    Payload between nodes lies in host memory that the GPU reaches. No command may be refused.
    """
    home = {rank: number for number, ranks in enumerate(nodes) for rank in ranks}
    size = -(-region_bytes(shape) // PAGE) * PAGE
    with ExitStack() as stack:
        group = stack.enter_context(
            Group(
                nodes, rings=RINGS, depth=DEPTH, signals=SIGNAL_WORDS + 1, proxies=proxies,
                nbytes=size, idle=idle,
            )
        )  # fmt: skip
        ranks = []
        for one in stack.enter_context(ranks_of(group, timeout_s)):
            end = LowLatency(
                shape, one.pod.rank, kernels, blocks=kernels.processors // shape.world,
                timeout_s=timeout_s, through=through(one),
            )  # fmt: skip
            ranks.append(Rank(end, kinds))
            stack.callback(ranks[-1].close)
        for rank, node in home.items():
            windows = [other.end.window if home[other.end.rank] == node else 0 for other in ranks]
            ranks[rank].end.connect(windows)
        checked(driver.cuCtxSynchronize())
        yield ranks
        checked(driver.cuCtxSynchronize())
        for pod in group.pods:
            assert not any(ring["refused"] for ring in pod.session.counters()["rings"])


def through(one: RankOfCore) -> Through:
    """The kernels have the rings but the first, and the signal words but the first."""
    return Through(
        rank=int(one.address),
        region=one.region_on_device,
        size_bytes=one.region.nbytes,
        offset=0,
        rings=one.pod.rings,
        first_ring=FIRST_RING,
        first_signal=1,
        abort=one.device.agent_address + AGENT_ABORT,
    )
