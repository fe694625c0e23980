"""How many rows by expert there are, where each expert's end, and what a row comes from; for
ElasticBuffer. epfabric.cuda.places lays them out.

Arrays are numpy's or torch's, `xp` is the module that they are of; nothing waits for the GPU.
"""

from __future__ import annotations

from typing import Any


def padded(counts: Any, alignment: int) -> Any:
    """Rounded up to multiples."""
    return (counts + alignment - 1) // alignment * alignment


def most_places(rows: int, topk: int, local_experts: int, alignment: int) -> int:
    """That so many rows can take."""
    most = rows * min(topk, local_experts) + (alignment - 1) * local_experts
    return int(padded(most, alignment))


def ends_of(counts: Any, alignment: int, *, padding: bool) -> Any:
    """Where the rows of each expert end, with their padding or without."""
    sizes = padded(counts, alignment)
    ends = sizes.cumsum(0)
    return ends if padding else ends - sizes + counts


def numbers_of(xp: Any, like: Any) -> Any:
    """0, 1, 2 … [len(like)] (int64), where `like` is."""
    return xp.ones_like(like).cumsum(0) - 1


def sources_of(xp: Any, topk: Any, ends: Any, tokens: Any, most: int) -> tuple[Any, Any]:
    """Of each row: its token's number among all ranks' (`most` of each; -1: nothing came), and its
    source rank times k plus its first choice here. ends: of the ranks' rows. tokens: of the
    sources."""
    rows = numbers_of(xp, tokens)
    source = (rows[:, None] >= ends).sum(1)
    first = ((topk >= 0).cumsum(1) == 0).sum(1)
    there = source < len(ends)
    token = xp.where(there, source * most + tokens, -1)
    return token, xp.where(there, source * topk.shape[1] + first, -1)
