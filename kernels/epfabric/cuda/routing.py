"""Where a batch's tokens go: the kernel behind get_dispatch_layout; for epfabric.buffer."""

from __future__ import annotations

import ctypes

from epfabric.cuda.kernels import Kernels
from epfabric.cuda.rank import checked
from epfabric.cuda.window import MAX_EXPERTS, MAX_TOPK
from epfabric.errors import SessionError

_TOKENS_A_BLOCK = 32


class RoutingCall(ctypes.Structure):
    """Mirror of epfabric::RoutingCall, which says what each array holds."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in ("topk", "in_rank", "rank_tokens", "node_tokens", "expert_tokens")
        ),
        *(
            (name, ctypes.c_uint32)
            for name in ("count", "k", "world", "experts", "node_ranks", "reserved")
        ),
    ]


def route(kernels: Kernels, topk: int, in_rank: int, counts: int, *, shape: tuple[int, int],
          world: int, experts: int, stream: int, node_ranks: int = 0) -> None:  # fmt: skip
    """Launches. shape: (tokens, k). counts: int32 of the ranks, then of the experts, then of the
    nodes (where node_ranks says how many ranks one has), one after another: they are zeroed first.
    """
    from cuda.bindings import driver

    count, k = shape
    if not 1 <= k <= MAX_TOPK:
        raise SessionError(f"top-{k}: 1 to {MAX_TOPK} can be")
    if not world <= experts <= MAX_EXPERTS or experts % world:
        raise SessionError(
            f"{experts} experts: a multiple of the {world} ranks is needed, {MAX_EXPERTS} at most"
        )
    nodes = world // node_ranks if node_ranks else 0
    checked(driver.cuMemsetD32Async(counts, 0, world + experts + nodes, stream))
    if count == 0:
        return
    call = RoutingCall(
        topk=topk,
        in_rank=in_rank,
        rank_tokens=counts,
        expert_tokens=counts + 4 * world,
        node_tokens=counts + 4 * (world + experts) if nodes else 0,
        count=count,
        k=k,
        world=world,
        experts=experts,
        node_ranks=node_ranks or world,
    )
    blocks = min(kernels.processors, -(-count // _TOKENS_A_BLOCK))
    kernels.launch("route_tokens", blocks, stream, call)
