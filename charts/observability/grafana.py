"""A dashboard as Grafana takes it; used by files.py."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from observability.model import Dashboard, Kind, Panel, Target, Thresholds, Unit, Variable

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
UNITS: dict[Unit, str] = {
    "seconds": "s",
    "count": "short",
    "per-second": "cps",
    "bytes-per-second": "Bps",
}
HEIGHT = 8
NUMBER_HEIGHT = 4
# The SDK's panel builders have no common type.
MAKE: dict[Kind, Callable[[], Any]] = {
    "lines": timeseries.Panel,
    "number": stat.Panel,
    "bars": bargauge.Panel,
    "table": table.Panel,
}


def render(wanted: Dashboard) -> str:
    """JSON, the same for the same table."""
    made = (
        dashboard.Dashboard(wanted.title)
        .uid(wanted.uid)
        .description(wanted.text)
        .tags(["epfabric"])
        .refresh("30s")
        .time("now-1h", "now")
        .readonly()
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Source").type("prometheus")
        )
    )
    for variable in wanted.variables:
        made.with_variable(_variable(variable))
    number = 0
    for row in wanted.rows:
        number += 1
        made.with_row(dashboard.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            made.with_panel(_panel(panel, number))
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _variable(variable: Variable) -> dashboard.QueryVariable:
    everything = VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard.QueryVariable(variable.name)
        .label(variable.title)
        .datasource(SOURCE)
        .query(f"label_values({variable.metric}, {variable.label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .current(everything)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _panel(panel: Panel, number: int) -> Any:
    made = (
        MAKE[panel.kind]()
        .id(number)
        .title(panel.title)
        .description(panel.text)
        .datasource(SOURCE)
        .unit(UNITS[panel.unit])
        .span(panel.width)
        .height(NUMBER_HEIGHT if panel.kind == "number" else HEIGHT)
    )
    if panel.kind == "lines":
        legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST)
        made.legend(legend.placement(LegendPlacement.BOTTOM).show_legend(True)).min(0)
    if panel.thresholds is not None:
        made.thresholds(_thresholds(panel.thresholds))
    for letter, target in zip(string.ascii_uppercase, panel.targets, strict=False):
        made.with_target(_target(target, panel.kind, letter))
    return made


def _target(target: Target, kind: Kind, letter: str) -> prometheus.Dataquery:
    query = prometheus.Dataquery().expr(target.expr).legend_format(target.legend)
    query.ref_id(letter).datasource(SOURCE)
    if kind == "table":
        query.format(PromQueryFormat.TABLE)
    return query.range() if kind == "lines" else query.instant()


def _thresholds(thresholds: Thresholds) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value, colour) for value, colour in thresholds.steps()]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
