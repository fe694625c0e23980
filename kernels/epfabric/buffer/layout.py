"""Which tokens of a batch go to which rank and expert, on torch's tensors; for the buffers."""

from __future__ import annotations

from typing import Any

from epfabric.buffer.event import EventOverlap
from epfabric.buffer.parts import Parts
from epfabric.buffer.tensors import checked_tensor
from epfabric.cuda.routing import route


def layout_of(
    parts: Parts, topk_idx: Any, experts: int, after: EventOverlap | None, aside: bool
) -> tuple[Any, Any, Any, EventOverlap]:
    """Tokens for each rank [ranks] and expert [experts] (int32), which go to which rank
    [tokens, ranks] (bool), event."""
    import torch

    choices = checked_tensor(topk_idx, "topk_idx", torch.int64, (None, None))
    world = parts.members.size
    counts = torch.empty(world + experts, dtype=torch.int32, device=topk_idx.device)
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
    )
    event = parts.order.end(stream, aside, (topk_idx, counts, in_rank))
    return counts[:world], counts[world:], in_rank, event
