"""What the demo prints: numbered steps with the time, notes, tables; used by the demo's steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class Show:
    """Prints to standard output; `steps` is how many steps there will be."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.number = 0
        self.begun = time.monotonic()

    def step(self, title: str) -> None:
        self.number += 1
        print(f"\n[{self.number}/{self.steps}] {self.elapsed()}  {title}", flush=True)

    def note(self, text: str) -> None:
        for line in text.rstrip().splitlines():
            print(f"    {line}", flush=True)

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        self.note(f"{title}\n{table(head, rows)}\n ")

    def elapsed(self) -> str:
        seconds = int(time.monotonic() - self.begun)
        return f"{seconds // 60:d}:{seconds % 60:02d}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns two spaces apart; numbers to the right, words to the left."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    right = [
        len(lines) > 1 and all(line[column][:1].isdigit() for line in lines[1:])
        for column in range(len(head))
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def duration(seconds: float) -> str:
    """Three significant digits in the unit that fits."""
    for size, unit in UNITS:
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0 s" if seconds == 0 else f"{seconds / 1e-9:.3g} ns"


def count(number: float) -> str:
    return f"{number:,.0f}"
