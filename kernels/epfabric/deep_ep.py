"""DeepEP's names, for code written for it: `from epfabric import deep_ep`.

docs/deepep.md says what is the same, what is accepted without effect, and what is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epfabric.buffer import Buffer, Config, ElasticBuffer, EPHandle, EventHandle, EventOverlap

if TYPE_CHECKING:
    topk_idx_t: Any

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "topk_idx_t",
]


def __getattr__(name: str) -> Any:
    if name == "topk_idx_t":
        import torch

        return torch.int64
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
