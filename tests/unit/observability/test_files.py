"""The dashboards in the chart are those of the table, and every panel can be told from another."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from observability.files import FOLDER, files
from observability.model import replaced
from observability.table import FABRIC

PANELS = [panel for row in FABRIC.rows for panel in row.panels]


def test_the_charts_files_are_what_the_table_makes() -> None:
    made = files()
    stored = {path: path.read_text() for path in FOLDER.iterdir()}
    assert stored == made, "run `PYTHONPATH=charts .venv/bin/python -m observability`"


@pytest.mark.parametrize("name", ["grafana.json", "perses.json"])
def test_every_query_of_the_table_is_in_the_file(name: str) -> None:
    text = (FOLDER / name).read_text()
    for panel in PANELS:
        for target in panel.targets:
            assert json.dumps(target.expr) in text


def test_grafana_panels_have_ids_places_and_sources_of_their_own() -> None:
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    shown = [panel for panel in panels if panel["type"] != "row"]
    assert len(shown) == len(PANELS)
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = Counter((p["gridPos"]["x"], p["gridPos"]["y"]) for p in shown)
    assert set(places.values()) == {1}
    for panel in shown:
        assert [target["refId"] for target in panel["targets"]] == ["A"] * len(panel["targets"])
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_perses_layout_shows_every_panel_once_within_the_grid() -> None:
    spec = json.loads((FOLDER / "perses.json").read_text())["spec"]
    items = [item for layout in spec["layouts"] for item in layout["spec"]["items"]]
    shown = [item["content"]["$ref"].removeprefix("#/spec/panels/") for item in items]
    assert sorted(shown) == sorted(spec["panels"])
    assert all(item["x"] + item["width"] <= 24 for item in items)


def test_a_legend_names_only_labels_that_its_query_keeps() -> None:
    for panel in PANELS:
        for target in panel.targets:
            kept = set(re.findall(r"by \(([^)]*)\)", target.expr))
            named = set(re.findall(r"{{(\w+)}}", target.legend))
            assert named <= {label.strip() for group in kept for label in group.split(",")}, target


def test_a_variable_without_a_value_is_not_left_in_a_query() -> None:
    with pytest.raises(KeyError):
        replaced("up{a=$b}", {})
    assert replaced("$a[$b_c] $$", {"a": "1", "b_c": "2"}) == "1[2] $$"
