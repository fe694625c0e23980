"""Asks a Prometheus what the dashboards ask; for tests of this tier and of the operator."""

from __future__ import annotations

import math

from harness.prometheus import Prometheus
from observability.model import Source, replaced
from observability.table import FABRIC

VALUES = {"namespace": ".*", "group": ".*", "__rate_interval": "1m"}


def unanswered(backend: Prometheus, source: Source) -> dict[str, str]:
    """By panel and legend: what is wrong with the answer to its query. Empty when all is well."""
    wrong = {}
    for panel, target in FABRIC.targets(source):
        expr = replaced(target.expr, VALUES)
        values = [float(row["value"][1]) for row in backend.query(expr)]
        if not values or not all(math.isfinite(value) for value in values):
            wrong[f"{panel.title} / {target.legend}"] = f"{expr} → {values}"
    return wrong


def choices(backend: Prometheus) -> dict[str, set[str]]:
    """What each variable of the dashboard offers."""
    return {
        variable.name: {
            row["metric"].get(variable.label, "")
            for row in backend.query(f"group by ({variable.label}) ({variable.metric})")
        }
        for variable in FABRIC.variables
    }
