"""The form of a bench's results: the JSON document and the table that is printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .series import Limit, Series, verdicts

HEAD = (
    "case",
    "metric",
    "unit",
    "value",
    "p50",
    "p99",
    "verified",
    "peer",
    "its value",
    "ratio",
    "bound, goal",
)


def document(bench: str, machine: dict[str, Any], series: Sequence[Series]) -> dict[str, Any]:
    """What build/bench/<bench>.json holds."""
    return {"bench": bench, "machine": machine, "results": [result(one) for one in series]}


def result(series: Series) -> dict[str, Any]:
    peer = None
    if series.peer_name is not None:
        peer = {"name": series.peer_name, "value": series.peer_value}
    return {
        "case": series.case,
        "metric": series.metric,
        "unit": series.unit,
        "value": series.value,
        "p50": series.reached_by(0.50),
        "p99": series.reached_by(0.99),
        "verified": series.verified,
        "peer": peer,
    }


def faults_of_form(found: Any) -> list[str]:
    """Where a document differs from the form that others read; empty when it does not."""
    faults: list[str] = []

    def expect(where: str, value: Any, fields: dict[str, type | tuple[type, ...]]) -> bool:
        if not isinstance(value, dict) or set(value) != set(fields):
            faults.append(f"{where}: not the fields {sorted(fields)}")
            return False
        wrong = [n for n, kind in fields.items() if type(value[n]) not in as_tuple(kind)]
        faults.extend(f"{where}.{name}: not of its type" for name in wrong)
        return not wrong

    if not expect("document", found, {"bench": str, "machine": dict, "results": list}):
        return faults
    if not found["results"]:
        faults.append("document.results: empty")
    number = (int, float)
    fields: dict[str, type | tuple[type, ...]] = {
        "case": str,
        "metric": str,
        "unit": str,
        "value": number,
        "p50": number,
        "p99": number,
        "verified": bool,
        "peer": (dict, type(None)),
    }
    for index, one in enumerate(found["results"]):
        if expect(f"results[{index}]", one, fields) and one["peer"] is not None:
            expect(f"results[{index}].peer", one["peer"], {"name": str, "value": number})
    return faults


def as_tuple(kind: type | tuple[type, ...]) -> tuple[type, ...]:
    return kind if isinstance(kind, tuple) else (kind,)


def table(series: Sequence[Series], limits: Sequence[Limit]) -> str:
    lines = [list(HEAD), *(row(one, limits) for one in series)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def row(series: Series, limits: Sequence[Limit]) -> list[str]:
    ratio, interval = series.ratio, series.ratio_interval
    compared = ["", "", ""]
    if ratio is not None and interval is not None and series.peer_name is not None:
        spread = f"{ratio:.3g} [{interval.low:.3g}, {interval.high:.3g}]"
        compared = [series.peer_name, amount(series.peer_value), spread]
    return [
        series.case,
        series.metric,
        series.unit,
        amount(series.value),
        amount(series.reached_by(0.50)),
        amount(series.reached_by(0.99)),
        "yes" if series.verified else "NO",
        *compared,
        ", ".join(verdicts(series, limits)),
    ]


def amount(value: float) -> str:
    """Three or four significant digits; millions as such."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.4g} M"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
