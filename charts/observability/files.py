"""Which files the chart ships, and what is in them; for __main__ and for the test that compares."""

from __future__ import annotations

from pathlib import Path

from observability import grafana, perses
from observability.table import FABRIC

FOLDER = Path(__file__).resolve().parents[1] / "epfabric" / "files" / "dashboards"


def files() -> dict[Path, str]:
    return {
        FOLDER / "grafana.json": grafana.render(FABRIC),
        FOLDER / "perses.json": perses.render(FABRIC),
    }
