"""Prints rows as a table or as JSON; used by all commands."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

Row = Mapping[str, Any]


def show(rows: Sequence[Row], columns: Sequence[str], output: str, empty: str) -> None:
    """`columns` are keys of the rows, in order; JSON has all keys. `empty` says that none is."""
    if output == "json":
        show_json(rows)
    elif rows:
        sys.stdout.write(table(rows, columns))
    else:
        print(empty, file=sys.stderr)


def show_json(value: Any, to: TextIO | None = None) -> None:
    print(json.dumps(value, indent=2, default=_plain), file=to or sys.stdout)


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Left-aligned columns under capital headings; one line a row."""
    lines = [[column.upper().replace("_", " ") for column in columns]]
    lines += [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        + "\n"
        for line in lines
    )


def seconds(value: float | None) -> str:
    """12 µs, 3.4 ms, 1.2 s; nothing for None."""
    if value is None:
        return ""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if value < limit:
            return f"{value * factor:.3g} {unit}"
    return f"{value:.3g} s"


def age_s(stamp: str | None, now: datetime) -> float | None:
    """Seconds since a time of the API server's; None where there is none, or it is not one."""
    try:
        return (now - datetime.fromisoformat(stamp)).total_seconds() if stamp else None
    except ValueError:
        return None


def age(stamp: str | None, now: datetime) -> str:
    """As kubectl shows it: 5s, 12m, 3h, 2d."""
    value = age_s(stamp, now)
    if value is None:
        return ""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if value >= size:
            return f"{int(value // size)}{unit}"
    return f"{int(value)}s"


def now() -> datetime:
    return datetime.now(UTC)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return " ".join(str(value).split())


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)
