"""Helm actions through libhelm, each in a process of its own (the library brings a Go runtime).

Used by tests and the demo as functions; `python -m harness.helm` is the other side of the call.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.process import HarnessError

TESTS = Path(__file__).resolve().parents[1]
PROJECT = TESTS.parent
CHART = PROJECT / "charts" / "epfabric"
ACTION_SECONDS = 240


def install(
    kubeconfig: Path, release: str, namespace: str, values: Mapping[str, Any], chart: Path = CHART
) -> dict[str, Any]:
    """Installs the chart, with its namespace; returns the release. HarnessError on refusal."""
    return call(
        "install",
        kubeconfig=str(kubeconfig),
        release=release,
        namespace=namespace,
        values=dict(values),
        chart=str(chart),
    )


def upgrade(
    kubeconfig: Path, release: str, namespace: str, values: Mapping[str, Any], chart: Path = CHART
) -> dict[str, Any]:
    return call(
        "upgrade",
        kubeconfig=str(kubeconfig),
        release=release,
        namespace=namespace,
        values=dict(values),
        chart=str(chart),
    )


def rollback(kubeconfig: Path, release: str, namespace: str, revision: int) -> dict[str, Any]:
    return call(
        "rollback",
        kubeconfig=str(kubeconfig),
        release=release,
        namespace=namespace,
        revision=revision,
    )


def check(kubeconfig: Path, release: str, namespace: str) -> None:
    """`helm test`. HarnessError where it failed; its pod's log is the kubelet's to give."""
    call("test", kubeconfig=str(kubeconfig), release=release, namespace=namespace)


def uninstall(kubeconfig: Path, release: str, namespace: str) -> dict[str, Any]:
    return call("uninstall", kubeconfig=str(kubeconfig), release=release, namespace=namespace)


def apply_definitions(kubeconfig: Path) -> None:
    """For a chart whose hooks are off: where no kubelet runs, Jobs would never end."""
    command = [str(PROJECT / ".venv/bin/epfabric-operator"), "crds", "apply"]
    done = subprocess.run(
        [*command, f"--kubeconfig={kubeconfig}"], capture_output=True, text=True, timeout=90
    )
    if done.returncode != 0:
        raise HarnessError(f"crds apply: {done.stderr.strip()[-3000:]}")


def template(values: Mapping[str, Any], namespace: str, chart: Path = CHART) -> str:
    """The rendered manifests as one YAML stream, without a cluster."""
    answer = offline("template", values=dict(values), namespace=namespace, chart=str(chart))
    return str(answer["manifest"])


def rendered(variants: Sequence[Mapping[str, Any]], namespace: str) -> list[dict[str, str]]:
    """For each set of values every template's text by its path, hooks and tests among them."""
    wanted = [dict(values) for values in variants]
    answer = offline("render", variants=wanted, namespace=namespace, chart=str(CHART))
    return list(answer["rendered"])


def lint(values: Mapping[str, Any], chart: Path = CHART) -> dict[str, Any]:
    return call("lint", values=dict(values), chart=str(chart))


def offline(action: str, **arguments: Any) -> dict[str, Any]:
    """Of the same values the same chart makes the same."""
    answer: dict[str, Any] = json.loads(offline_answer(asked(action, arguments)))
    return answer


@functools.cache
def offline_answer(request: str) -> str:
    return run(request)


def call(action: str, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(asked(action, arguments)))
    return answer


def asked(action: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"action": action, **arguments})


def run(request: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "harness.helm"],
        input=request,
        env={"PYTHONPATH": str(TESTS), "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=2 * ACTION_SECONDS + 30,  # an uninstallation has two hooks
        check=False,
    )
    if done.returncode != 0:
        action = json.loads(request)["action"]
        raise HarnessError(f"helm {action}: {done.stderr.strip()[-3000:]}")
    return done.stdout


def act(request: dict[str, Any]) -> dict[str, Any]:
    import helm_python

    action = request["action"]
    if action == "render":
        place = {"name": "epfabric", "namespace": request["namespace"]}
        with helm_python.Chart.load(request["chart"]) as chart:
            return {"rendered": [chart.render(v, **place) for v in request["variants"]]}
    if action in {"template", "lint"}:
        return render_or_lint(helm_python, request)
    with helm_python.Config(
        kubeconfig_path=request["kubeconfig"], namespace=request["namespace"]
    ) as config:
        name = request["release"]
        bounded: dict[str, Any] = {"timeout": ACTION_SECONDS, "wait": "hookOnly"}
        if action == "uninstall":
            return dict(config.uninstall(name, **bounded))
        if action == "rollback":
            config.rollback(name, version=request["revision"], **bounded)
            return {}
        if action == "test":
            return dict(config.test(name, timeout=ACTION_SECONDS))
        arguments = {"namespace": request["namespace"], **bounded}
        if action == "install":
            arguments["create_namespace"] = True
        method = getattr(config, action)
        return dict(method(request["chart"], name, request["values"], **arguments))


def render_or_lint(helm_python: Any, request: dict[str, Any]) -> dict[str, Any]:
    if request["action"] == "lint":
        return {"findings": helm_python.lint(request["chart"], request["values"])}
    with helm_python.Config(namespace=request["namespace"], storage_driver="memory") as config:
        return dict(
            config.install(
                request["chart"],
                "epfabric",
                request["values"],
                namespace=request["namespace"],
                dry_run="client",
            )
        )


def main() -> int:
    try:
        print(json.dumps(act(json.load(sys.stdin))))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
