"""Which tokens of a batch go to which rank and expert, on torch's tensors; for the buffers."""

from __future__ import annotations

from typing import Any

from epfabric.buffer.event import EventOverlap
from epfabric.buffer.parts import Parts
from epfabric.buffer.tensors import checked_tensor
from epfabric.cuda.routing import route


def layout_of(
    parts: Parts, topk_idx: Any, experts: int, after: EventOverlap | None, aside: bool
) -> tuple[Any, Any, Any, Any, EventOverlap]:
    """Tokens for each rank [ranks], node [nodes] (nothing where it is one) and expert [experts]
    (int32), which go to which rank [tokens, ranks] (bool), event."""
    import torch

    choices = checked_tensor(topk_idx, "topk_idx", torch.int64, (None, None))
    world = parts.members.size
    end = parts.bulk.end if parts.bulk is not None else None
    node_ranks = end.node_ranks if end is not None and end.proxied else 0
    nodes = world // node_ranks if node_ranks else 0
    counts = torch.empty(world + experts + nodes, dtype=torch.int32, device=topk_idx.device)
    in_rank = torch.empty((len(topk_idx), world), dtype=torch.bool, device=topk_idx.device)
    stream = parts.order.begin(aside, after)
    route(
        parts.routing,
        choices,
        in_rank.data_ptr(),
        counts.data_ptr(),
        shape=(topk_idx.shape[0], topk_idx.shape[1]),
        world=world,
        experts=experts,
        stream=stream.cuda_stream,
        node_ranks=node_ranks,
    )
    event = parts.order.end(stream, aside, (topk_idx, counts, in_rank))
    by_rank, by_expert, by_node = counts.split((world, experts, nodes))
    return by_rank, by_node if nodes else None, by_expert, in_rank, event
