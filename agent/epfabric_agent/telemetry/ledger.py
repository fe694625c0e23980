"""Keeps cumulative series from snapshots of what comes and goes; called by the exporter's reader.

Sessions and epochs begin at zero and end; an exported series of a group must neither fall nor
forget. So each series is the sum of what its ended origins left and of what its live ones say now.
A group keeps its label until its series end, LINGER_S after its last session; the groups beyond
MAX_GROUPS share the label OTHER, and so do the attribute values beyond MAX_SERIES of one metric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from epfabric_agent.telemetry import histogram
from epfabric_agent.telemetry.histogram import Histogram
from epfabric_agent.telemetry.readings import (
    GROUP,
    NAMESPACE,
    PEER,
    RANK,
    REASON,
    Attributes,
    GroupName,
    MetricInfo,
    Reading,
)

MAX_GROUPS = 64
MAX_SERIES = 4096
LINGER_S = 300.0
OTHER = "_other"
OTHER_GROUP: GroupName = (OTHER, OTHER)
_UNBOUNDED = frozenset({PEER, RANK, REASON})

Origin = tuple[GroupName, tuple[str, int], Attributes]
Key = tuple[MetricInfo, GroupName, Attributes]


@dataclass(frozen=True)
class Series:
    """One series as it is exported; `start_ns` is a wall-clock time before its first count."""

    metric: MetricInfo
    attributes: Attributes
    start_ns: int
    value: int | Histogram


@dataclass
class _Total:
    """What ended origins left, and the last word of each live one."""

    start_ns: int
    left: list[int | Histogram] = field(default_factory=list)
    live: dict[Origin, int | Histogram] = field(default_factory=dict)

    def hear(self, origin: Origin, value: int | Histogram) -> None:
        last = self.live.get(origin)
        if last is not None and _size(value) < _size(last):
            self._leave(last)
        self.live[origin] = value

    def end_all_but(self, origins: Iterable[Origin]) -> None:
        for origin in self.live.keys() - set(origins):
            self._leave(self.live.pop(origin))

    def _leave(self, value: int | Histogram) -> None:
        self.left = [_sum([*self.left, value])]

    def value(self) -> int | Histogram:
        return _sum([*self.left, *self.live.values()])


class Ledger:
    """Folds snapshots in; not thread-safe, its caller holds a lock."""

    def __init__(self, started_ns: int, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._folded_ns = started_ns
        self._totals: dict[Key, _Total] = {}
        self._gauges: dict[Key, int] = {}
        self._last_seen: dict[GroupName, float] = {}
        """By label, so OTHER_GROUP stands for all groups that share it."""
        self._labels: dict[GroupName, GroupName] = {}
        self._per_metric: dict[MetricInfo, int] = {}

    def fold(self, readings: Iterable[Reading], now_s: float, wall_ns: int) -> None:
        """Takes all readings of one snapshot; `now_s` is monotonic, `wall_ns` is Unix time."""
        heard: dict[Key, set[Origin]] = {}
        self._gauges.clear()
        seen_groups: set[GroupName] = set()
        for reading in readings:
            seen_groups.add(reading.group)
            label = self._label(reading.group)
            self._last_seen[label] = now_s
            if reading.metric.kind == "gauge" and isinstance(reading.value, int):
                self._gauge(reading.metric, label, reading.attributes, reading.value)
                continue
            key = self._key(reading, label)
            # Attribute values that share OTHER are origins of their own in its series.
            origin = (reading.group, reading.origin, reading.attributes)
            self._totals[key].hear(origin, reading.value)
            heard.setdefault(key, set()).add(origin)
        for key, total in self._totals.items():
            total.end_all_but(heard.get(key, ()))
        self._expire(seen_groups, now_s)
        self._folded_ns = wall_ns

    def series(self) -> Iterator[Series]:
        """Every series of the last fold; histograms are of the size that backends take."""
        for (metric, label, attributes), total in self._totals.items():
            value = total.value()
            if isinstance(value, Histogram):
                value = histogram.fit(value)
            yield Series(metric, _full(label, attributes), total.start_ns, value)
        for (metric, label, attributes), value in self._gauges.items():
            yield Series(metric, _full(label, attributes), 0, value)

    def _label(self, group: GroupName) -> GroupName:
        label = self._labels.get(group)
        if label is None:
            own = sum(1 for shown in self._labels.values() if shown != OTHER_GROUP)
            label = group if own < MAX_GROUPS else OTHER_GROUP
            self._labels[group] = label
        return label

    def _key(self, reading: Reading, label: GroupName) -> Key:
        key = (reading.metric, label, _shown(label, reading.attributes))
        if key in self._totals:
            return key
        if self._per_metric.get(reading.metric, 0) >= self._max_series:
            key = (reading.metric, label, _blurred(reading.attributes, _UNBOUNDED))
        if key not in self._totals:
            # Counts before this fold and after the last one: the series began between the two.
            self._totals[key] = _Total(start_ns=self._folded_ns)
            self._per_metric[reading.metric] = self._per_metric.get(reading.metric, 0) + 1
        return key

    def _gauge(
        self, metric: MetricInfo, label: GroupName, attributes: Attributes, value: int
    ) -> None:
        key = (metric, label, _shown(label, attributes))
        self._gauges[key] = self._gauges.get(key, 0) + value

    def _expire(self, seen: set[GroupName], now_s: float) -> None:
        ended = {label for label, last in self._last_seen.items() if now_s - last >= LINGER_S}
        for key in [key for key in self._totals if key[1] in ended]:
            del self._totals[key]
            self._per_metric[key[0]] -= 1
        for label in ended:
            del self._last_seen[label]
        self._labels = {
            group: label
            for group, label in self._labels.items()
            if group in seen or (label != OTHER_GROUP and label not in ended)
        }


def _full(label: GroupName, attributes: Attributes) -> Attributes:
    return ((NAMESPACE, label[0]), (GROUP, label[1]), *attributes)


def _shown(label: GroupName, attributes: Attributes) -> Attributes:
    """Rank 3 of one group and rank 3 of another have nothing in common."""
    return _blurred(attributes, frozenset({RANK})) if label == OTHER_GROUP else attributes


def _blurred(attributes: Attributes, names: frozenset[str]) -> Attributes:
    return tuple((name, OTHER if name in names else value) for name, value in attributes)


def _size(value: int | Histogram) -> int:
    return value.count if isinstance(value, Histogram) else value


def _sum(values: list[int | Histogram]) -> int | Histogram:
    histograms = [value for value in values if isinstance(value, Histogram)]
    if histograms:
        return histogram.merge_all(histograms)
    return sum(value for value in values if isinstance(value, int))
