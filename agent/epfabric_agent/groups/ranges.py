"""Ranks as short text, such as 0-7,12; for statuses, EPGroups and reasons."""

from __future__ import annotations

from collections.abc import Iterable


def format_ranges(numbers: Iterable[int]) -> str:
    """`0-2,5` of 0, 1, 2, 5; empty of nothing."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def parse_ranges(text: str) -> tuple[int, ...]:
    """The numbers of `0-2,5`. Raises ValueError for anything else."""
    found: list[int] = []
    for part in text.strip().split(",") if text.strip() else ():
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"{text!r} is no list of ranges such as 0-7,12")
        found.extend(range(int(first), int(last if dash else first) + 1))
    return tuple(found)


def spoken(ranks: Iterable[int]) -> str:
    """`rank 3` or `ranks 0-2,5`."""
    numbers = sorted(set(ranks))
    return f"rank{'s' if len(numbers) != 1 else ''} {format_ranges(numbers)}"
