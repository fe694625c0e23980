"""The chart's alert rules by promtool: valid, firing and not firing; and explained in the docs."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from epfabric_crds import names
from harness import build, helm
from observability.files import FOLDER

CASES = Path(__file__).with_name("alert_rules.yaml")
PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
VALUES: dict[str, Any] = {"injection": {"policyVersion": "v1"}}
SENDS: dict[str, Any] = {"operator": {"telemetryEndpoint": "http://collector.telemetry:4318"}}


def rendered(name: str, **values: Any) -> dict[str, Any]:
    """The chart's object of that name."""
    text = helm.template(VALUES | values, names.NAMESPACE)
    (found,) = [one for one in yaml.safe_load_all(text) if one and one["metadata"]["name"] == name]
    return dict(found)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rules of the ConfigMap, in a file beside the cases."""
    folder = tmp_path_factory.mktemp("alerts")
    path = folder / "rules.yaml"
    path.write_text(
        rendered("epfabric-alerts", alerts={"kind": "ConfigMap"}, **SENDS)["data"]["epfabric.yaml"]
    )
    (folder / CASES.name).write_text(CASES.read_text())
    return path


def alerts(text: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def promtool(*arguments: str | Path) -> None:
    program = build.programs("prometheus")["promtool"]
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong(rules: Path) -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", rules)


def test_each_alert_fires_when_it_should_and_only_then(rules: Path) -> None:
    promtool("test", "rules", rules.with_name(CASES.name))


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(rules: Path) -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    tests = [test for case in cases for test in case["promql_expr_test"]]
    for alert in alerts(rules.read_text()):
        of_it = [test for test in tests if re.search(rf"\b{alert['alert']}\b", test["expr"])]
        assert any(test["exp_samples"] for test in of_it), alert["alert"]
        assert any(not test["exp_samples"] for test in of_it), alert["alert"]


def test_each_alert_says_what_it_is_and_its_runbook_is_there(rules: Path) -> None:
    anchors = {line.removeprefix("### ").strip().lower() for line in PAGE.splitlines()}
    for alert in alerts(rules.read_text()):
        annotations = alert["annotations"]
        assert set(annotations) == {"summary", "description", "runbook_url"}
        page, _, anchor = annotations["runbook_url"].partition("#")
        assert page == "docs/operations.md"
        assert anchor == alert["alert"].lower()
        assert anchor in anchors
        assert alert["labels"]["severity"] in {"critical", "warning", "info"}


def test_the_prometheus_rule_holds_the_same_rules_with_the_values_of_the_installation(
    rules: Path,
) -> None:
    values = {
        "kind": "PrometheusRule",
        "labels": {"release": "monitoring"},
        "runbook": "https://example.test/operations",
        "barrierSlowSeconds": 0.25,
        "operator": True,
    }
    made = rendered("epfabric-alerts", alerts=values)
    assert made["kind"] == "PrometheusRule"
    assert made["metadata"]["labels"]["release"] == "monitoring"
    expected = rules.read_text().replace("docs/operations.md#", "https://example.test/operations#")
    assert made["spec"] == yaml.safe_load(expected.replace("> 0.01", "> 0.25"))


@pytest.mark.parametrize("kind", ["ConfigMap", "PrometheusRule"])
def test_without_the_operators_metrics_no_rule_asks_for_them_alone(kind: str, rules: Path) -> None:
    made = rendered("epfabric-alerts", alerts={"kind": kind})
    found = made.get("spec") or yaml.safe_load(made["data"]["epfabric.yaml"])
    kept = [rule for group in found["groups"] for rule in group["rules"]]
    assert all(group["rules"] for group in found["groups"])
    of_it = [r for r in alerts(rules.read_text()) if not r["expr"].count("epfabric_sessions")]
    operators = [rule for rule in of_it if "epfabric_operator_" in rule["expr"]]
    assert len(operators) == 4
    assert kept == [rule for rule in alerts(rules.read_text()) if rule not in operators]


def test_a_label_of_the_installation_stands_once_and_counts() -> None:
    theirs = {"app.kubernetes.io/part-of": "monitoring", "app.kubernetes.io/instance": "1"}
    asked = {"grafana": {"enabled": True, "labels": theirs}}
    values = {"alerts": {"kind": "ConfigMap", "labels": theirs}, "dashboards": asked}
    text = helm.template(VALUES | values, names.NAMESPACE)
    for name in ("epfabric-alerts", "epfabric-dashboard-grafana"):
        (one,) = [part for part in text.split("\n---\n") if f"  name: {name}\n" in part]
        assert [one.count(f"    {label}: ") for label in theirs] == [1, 1], one
        assert yaml.safe_load(one)["metadata"]["labels"].items() >= theirs.items()


def test_without_a_kind_there_are_no_rules() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        rendered("epfabric-alerts")


@pytest.mark.parametrize("kind", ["grafana", "perses"])
def test_the_dashboards_config_map_holds_the_file_under_the_sidecars_label(kind: str) -> None:
    asked = {kind: {"enabled": True, "labels": {"of-the-sidecar": "yes"}}}
    made = rendered(f"epfabric-dashboard-{kind}", dashboards=asked)
    assert made["metadata"]["labels"]["of-the-sidecar"] == "yes"
    (text,) = made["data"].values()
    assert json.loads(text) == json.loads((FOLDER / f"{kind}.json").read_text())
    with pytest.raises(ValueError, match="not enough values"):
        rendered(f"epfabric-dashboard-{kind}", dashboards={kind: {"enabled": False}})
