"""A dashboard as Perses takes it (perses.dev v1); used by files.py."""

from __future__ import annotations

import json
from typing import Any

from observability.model import Dashboard, Kind, Panel, Row, Target, Thresholds, Unit, Variable

PROJECT = "epfabric"
PLUGINS: dict[Kind, str] = {
    "lines": "TimeSeriesChart",
    "number": "StatChart",
    "bars": "BarChart",
    "table": "TimeSeriesTable",
}
UNITS: dict[Unit, str] = {
    "seconds": "seconds",
    "count": "decimal",
    "per-second": "counts/sec",
    "bytes-per-second": "bytes/sec",
}
HEIGHT = 8
NUMBER_HEIGHT = 4
COLUMNS = 24
Object = dict[str, Any]


def render(wanted: Dashboard) -> str:
    """JSON, the same for the same table."""
    panels: Object = {}
    layouts = []
    for row in wanted.rows:
        keys = [f"p{len(panels) + index}" for index in range(len(row.panels))]
        panels |= {key: _panel(panel) for key, panel in zip(keys, row.panels, strict=True)}
        layouts.append(_layout(row, keys))
    spec = {
        "display": {"name": wanted.title, "description": wanted.text},
        "duration": "1h",
        "refreshInterval": "30s",
        "variables": [_variable(variable) for variable in wanted.variables],
        "panels": panels,
        "layouts": layouts,
    }
    made = {
        "kind": "Dashboard",
        "metadata": {"name": wanted.uid, "project": PROJECT},
        "spec": spec,
    }
    return json.dumps(made, indent=1, sort_keys=True) + "\n"


def _variable(variable: Variable) -> Object:
    values = {"labelName": variable.label, "matchers": [variable.metric]}
    spec = {
        "name": variable.name,
        "display": {"name": variable.title},
        "allowAllValue": True,
        "allowMultiple": True,
        "customAllValue": ".*",
        "defaultValue": "$__all",
        "plugin": {"kind": "PrometheusLabelValuesVariable", "spec": values},
    }
    return {"kind": "ListVariable", "spec": spec}


def _panel(panel: Panel) -> Object:
    spec = {
        "display": {"name": panel.title, "description": panel.text},
        "plugin": {"kind": PLUGINS[panel.kind], "spec": _options(panel)},
        "queries": [_query(target) for target in panel.targets],
    }
    return {"kind": "Panel", "spec": spec}


def _options(panel: Panel) -> Object:
    unit = {"unit": UNITS[panel.unit]}
    if panel.kind == "lines":
        return {"yAxis": {"format": unit, "min": 0}, "legend": {"position": "bottom"}}
    if panel.kind == "number":
        options: Object = {"calculation": "last", "format": unit}
        if panel.thresholds is not None:
            options["thresholds"] = _thresholds(panel.thresholds)
        return options
    return {"calculation": "last", "format": unit} if panel.kind == "bars" else {}


def _thresholds(thresholds: Thresholds) -> Object:
    (_, base), *rest = thresholds.steps()
    return {
        "defaultColor": base,
        "steps": [{"value": value, "color": colour} for value, colour in rest],
    }


def _query(target: Target) -> Object:
    spec = {"query": target.expr, "seriesNameFormat": target.legend}
    return {
        "kind": "TimeSeriesQuery",
        "spec": {"plugin": {"kind": "PrometheusTimeSeriesQuery", "spec": spec}},
    }


def _layout(row: Row, keys: list[str]) -> Object:
    items = []
    x = y = tallest = 0
    for key, panel in zip(keys, row.panels, strict=True):
        height = NUMBER_HEIGHT if panel.kind == "number" else HEIGHT
        if x + panel.width > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        content = {"$ref": f"#/spec/panels/{key}"}
        items.append({"x": x, "y": y, "width": panel.width, "height": height, "content": content})
        x, tallest = x + panel.width, max(tallest, height)
    display = {"title": row.title, "collapse": {"open": True}}
    return {"kind": "Grid", "spec": {"display": display, "items": items}}
