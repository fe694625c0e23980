"""What a dashboard is, whoever shows it; filled by table.py, read by grafana.py and perses.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["lines", "number", "bars", "table"]
Unit = Literal["seconds", "count", "per-second", "bytes-per-second"]
Source = Literal["agent", "operator"]
COLOURS = ("green", "orange", "red")


@dataclass(frozen=True)
class Target:
    """One query and how its series are called; `{{label}}` stands for a label's value."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Thresholds:
    """From which value on something is worth a look, and from which on it is wrong; where
    `falling`, below which."""

    look: float
    wrong: float
    falling: bool = False

    def steps(self) -> list[tuple[float | None, str]]:
        """Colours from the lowest value on; None is minus infinity."""
        good, look, wrong = COLOURS
        if self.falling:
            return [(None, wrong), (self.wrong, look), (self.look, good)]
        return [(None, good), (self.look, look), (self.wrong, wrong)]


@dataclass(frozen=True)
class Panel:
    title: str
    text: str
    """What it shows and what a high value means; for people."""
    kind: Kind
    unit: Unit
    targets: tuple[Target, ...]
    width: int = 8
    """Of 24."""
    thresholds: Thresholds | None = None


@dataclass(frozen=True)
class Row:
    title: str
    source: Source
    """Whose metrics its panels show."""
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of the dashboard: the values that `label` has in `metric`."""

    name: str
    title: str
    metric: str
    label: str


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    text: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    def targets(self, source: Source) -> Iterator[tuple[Panel, Target]]:
        for row in self.rows:
            if row.source == source:
                for panel in row.panels:
                    for target in panel.targets:
                        yield panel, target


def replaced(expr: str, values: Mapping[str, str]) -> str:
    """The expression as a server takes it. KeyError for a variable without a value."""
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expr)
