"""Rows by expert, one for each of a row's experts ("places"), made of the rows that a dispatch
brings; for ElasticBuffer.

Arrays are numpy's or torch's, `xp` is the module that they are of; nothing waits for the GPU, and
sizes are known before. A dispatch that fails leaves anything in `topk`: no place is out of bounds.
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


def places_of(xp: Any, topk: Any, counts: Any, alignment: int, total: int) -> Any:
    """[rows, k]: the place of each choice, by expert and in the order of rows; -1: the choice is
    not of this rank (-1 in topk), or the row names the expert before.

    topk [rows, k] (int64): experts of this rank. counts [experts]: rows of each. total: of places.
    """
    if not len(topk):
        return topk
    experts = numbers_of(xp, counts)
    named = topk[:, :1] == experts
    for choice in range(1, topk.shape[1]):
        named = named | (topk[:, choice : choice + 1] == experts)
    sizes = padded(counts, alignment)
    places = named.cumsum(0) - 1 + (sizes.cumsum(0) - sizes)
    rows = numbers_of(xp, topk[:, 0])
    found = places[rows[:, None], topk.clip(0, len(counts) - 1)]
    choices = numbers_of(xp, topk[0])
    earlier = choices[:, None] > choices
    again = ((topk[:, :, None] == topk[:, None, :]) & earlier).any(2)
    return xp.where((topk < 0) | again | (found >= total), -1, found)


def rows_of(xp: Any, places: Any, blank: Any) -> Any:
    """[total]: the row at each place, -1 in the padding. blank: [total + 1] of -1, is used."""
    total = len(blank) - 1
    rows = numbers_of(xp, places[:, 0])
    blank[xp.where(places < 0, total, places)] = rows[:, None]
    return blank[:-1]


def weights_at(xp: Any, weights: Any, places: Any, blank: Any) -> Any:
    """[total]: the weight of each place. weights [rows, k]. blank: [total + 1] zeros, is used."""
    blank[xp.where(places < 0, len(blank) - 1, places)] = weights
    return blank[:-1]


def weights_back(xp: Any, weights: Any, places: Any) -> Any:
    """[rows, k] of the weights at places; 0 where there is none."""
    if not len(weights):
        return xp.zeros_like(places, dtype=weights.dtype)
    return xp.where(places < 0, 0, weights[places.clip(0)])


def spread(xp: Any, values: Any, rows: Any, *, zero: bool) -> Any:
    """values [rows, …] at the places; what is in the padding is zero, or any row."""
    found = values[rows.clip(0)] if len(values) else values[:0]
    return xp.where((rows < 0)[:, None], 0, found) if zero else found


def add_up(xp: Any, values: Any, places: Any, sums: Any) -> None:
    """Adds to sums [rows, hidden] what lies at each row's places."""
    if not len(values):
        return
    for choice in range(places.shape[1]):
        place = places[:, choice]
        sums += xp.where((place < 0)[:, None], 0, values[place.clip(0)])


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
