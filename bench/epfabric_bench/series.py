"""From the raw samples of a bench to its results: what a bench measures is a `Series`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .quantiles import Interval, median, median_interval, quantile

OURS = "epfabric"
MORE, LESS = "more", "less"


@dataclass(frozen=True)
class Line:
    """One round of one side, printed by a native program (bench/native/bench.h) or made by a bench.

    `side` is OURS or the peer's name; `better` says whether more or less is better.
    """

    case: str
    metric: str
    unit: str
    better: str
    side: str
    round: int
    verified: bool
    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.better not in (MORE, LESS) or not self.samples:
            raise ValueError(f"not a line of samples: {self}")


def parse_line(text: str) -> Line:
    """Raises ValueError for what is not a line of samples."""
    try:
        fields: dict[str, Any] = json.loads(text)
        fields["samples"] = tuple(float(value) for value in fields["samples"])
        return Line(**fields)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a line of samples ({error}): {text[:200]}") from error


@dataclass(frozen=True)
class Series:
    """All rounds of one metric in one case; rounds of the peer stand beside ours, in pairs."""

    case: str
    metric: str
    unit: str
    better: str
    verified: bool
    ours: tuple[tuple[float, ...], ...]
    peer_name: str | None = None
    peer: tuple[tuple[float, ...], ...] = ()

    @property
    def value(self) -> float:
        """The median over the rounds of each round's median."""
        return median([median(samples) for samples in self.ours])

    def reached_by(self, share: float) -> float:
        """What a share (0 … 1) of all samples reaches or betters."""
        pooled = [value for samples in self.ours for value in samples]
        return quantile(pooled, share) if self.better == LESS else -quantile(negate(pooled), share)

    @property
    def peer_value(self) -> float:
        return median([median(samples) for samples in self.peer])

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, pair by pair."""
        pairs = zip(self.ours, self.peer, strict=True)
        return [median(ours) / median(peer) for ours, peer in pairs]

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.peer else None

    @property
    def ratio_interval(self) -> Interval | None:
        return median_interval(self.ratios) if self.peer else None


def negate(values: Iterable[float]) -> list[float]:
    return [-value for value in values]


@dataclass
class _Rounds:
    first: Line
    verified: bool = True
    sides: dict[str, dict[int, tuple[float, ...]]] = field(default_factory=dict)


def group(lines: Iterable[Line]) -> list[Series]:
    """Lines of one case and metric become one series. Raises ValueError where they do not fit."""
    found: dict[tuple[str, str], _Rounds] = {}
    for line in lines:
        rounds = found.setdefault((line.case, line.metric), _Rounds(line))
        if (line.unit, line.better) != (rounds.first.unit, rounds.first.better):
            raise ValueError(f"two units of {line.case} {line.metric}")
        side = rounds.sides.setdefault(line.side, {})
        if line.round in side:
            raise ValueError(f"round {line.round} of {line.case} {line.metric} came twice")
        side[line.round] = line.samples
        rounds.verified = rounds.verified and line.verified
    return [_series(rounds) for rounds in found.values()]


def _series(rounds: _Rounds) -> Series:
    first = rounds.first
    peers = [side for side in rounds.sides if side != OURS]
    if OURS not in rounds.sides or len(peers) > 1:
        raise ValueError(f"{first.case} {first.metric} has the sides {sorted(rounds.sides)}")
    ours = rounds.sides[OURS]
    peer = rounds.sides[peers[0]] if peers else {}
    if peers and ours.keys() != peer.keys():
        raise ValueError(f"{first.case} {first.metric} has rounds without their pair")
    return Series(
        first.case,
        first.metric,
        first.unit,
        first.better,
        rounds.verified,
        tuple(ours[number] for number in sorted(ours)),
        peers[0] if peers else None,
        tuple(peer[number] for number in sorted(peer)),
    )


@dataclass(frozen=True)
class Limit:
    """What a series has to reach: missing `bound` is a failure, missing `goal` is only said.

    `of` is "value", "p99" or "ratio" (to the peer); without `case` it holds for every case of the
    metric.
    """

    metric: str
    bound: float | None
    goal: float
    of: str = "value"
    case: str | None = None

    def applies(self, series: Series) -> bool:
        return series.metric == self.metric and self.case in (None, series.case)

    def verdict(self, series: Series) -> str:
        """ "goal reached", "goal missed" or "BOUND MISSED"."""
        if self.of == "p99":
            value: float | None = series.reached_by(0.99)
        else:
            value = series.value if self.of == "value" else series.ratio
        if value is None:
            raise ValueError(f"{series.case} {series.metric} has no peer to be compared with")
        if self.bound is not None and not _reaches(value, self.bound, series.better):
            return "BOUND MISSED"
        return "goal reached" if _reaches(value, self.goal, series.better) else "goal missed"


def _reaches(value: float, limit: float, better: str) -> bool:
    return value >= limit if better == MORE else value <= limit


def verdicts(series: Series, limits: Sequence[Limit]) -> list[str]:
    return [limit.verdict(series) for limit in limits if limit.applies(series)]
