"""The command bench: measures a fabric with a Job of ranks, each of which is a pod; for main.py.

The ranks run examples/fabric_bench.py of the client image and leave their results as termination
messages, so that neither logs nor a shell in a pod are needed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from epfabric_crds import names

from epfabric_operator.cli import output
from epfabric_operator.cli.cluster import Cluster
from epfabric_operator.cli.fault import FAILED, FINE, NOT_FOUND, USAGE, Fault

CONFIG = "epfabric-client"
PYTHON = "/opt/epfabric/bin/python"
PROGRAM = "/opt/epfabric/examples/fabric_bench.py"
RESULT = "/dev/termination-log"
LABEL = "epfabric.io/bench"
LOOK_S = 1.0
SAY_S = 10.0
GRACE_S = 15
MOST_RANKS = 4096
COLUMNS = ("case", "metric", "p50", "p99", "value", "unit", "ranks", "verified")
Object = Mapping[str, Any]


def run(cluster: Cluster, options: argparse.Namespace) -> int:
    if not 2 <= options.ranks <= MOST_RANKS:
        raise Fault(USAGE, f"--ranks must be 2 to {MOST_RANKS}, not {options.ranks}")
    there = [fabric.metadata.name for fabric in cluster.fabrics()]
    if options.fabric not in there:
        listed = ", ".join(there) or "none"
        raise Fault(NOT_FOUND, f"there is no EPFabric {options.fabric}; there are: {listed}")
    image = options.image or _image(cluster)
    name = f"epfabric-bench-{uuid.uuid4().hex[:8]}"
    jobs = f"/apis/batch/v1/namespaces/{options.namespace}/jobs"
    cluster.create(jobs, job(name, options, image))
    say(f"Job {name} in namespace {options.namespace}: {options.ranks} ranks of {image}")
    try:
        pods = _await(cluster, f"{jobs}/{name}", options, name)
    finally:
        if not options.keep:
            cluster.delete(f"{jobs}/{name}")
    ranks = [found for pod in pods if (found := result_of(pod)) is not None]
    rows = summary(ranks)
    if options.output == "json":
        machine = {"fabric": options.fabric, "nodes": sorted({r.get("node", "") for r in ranks})}
        output.show_json({"bench": "fabric", "machine": machine, "results": rows})
    elif rows:
        sys.stdout.write(output.table([_rounded(row) for row in rows], COLUMNS))
    if not right(ranks, options.ranks):
        raise Fault(FAILED, why(pods, ranks, options.ranks))
    return FINE


def _image(cluster: Cluster) -> str:
    """The client image that the chart names. Raises Fault."""
    path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps/{CONFIG}"
    try:
        found = cluster.get(path)
    except Fault as fault:
        raise Fault(fault.code, f"{fault}, or name the client image by --image") from fault
    if found is None:
        text = f"the chart left no ConfigMap {CONFIG}: name the client image by --image"
        raise Fault(NOT_FOUND, text)
    return str(found["data"]["image"])


def job(name: str, options: argparse.Namespace, image: str) -> dict[str, Any]:
    """Indexed, so that each pod knows its rank; its pods need no privilege."""
    labels = {LABEL: name}
    command = [PYTHON, PROGRAM, f"--iterations={options.iterations}", f"--result={RESULT}"]
    container = {
        "name": "rank",
        "image": image,
        "command": command,
        "env": [{"name": "WORLD_SIZE", "value": str(options.ranks)}],
        "terminationMessagePath": RESULT,
        "resources": {
            "requests": {"cpu": "1", "memory": "256Mi"},
            "limits": {"memory": "1Gi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    template = {
        "metadata": {"labels": labels, "annotations": {names.FABRIC_ANNOTATION: options.fabric}},
        "spec": {
            "restartPolicy": "Never",
            "topologySpreadConstraints": [spread],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": options.namespace, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": options.ranks,
            "parallelism": options.ranks,
            "backoffLimit": 0,
            "activeDeadlineSeconds": options.timeout_s,
            "template": template,
        },
    }


def _await(cluster: Cluster, path: str, options: argparse.Namespace, name: str) -> list[Object]:
    """The pods once all have ended, or as they are when the Job or the time is over."""
    end = time.monotonic() + options.timeout_s + GRACE_S
    said = time.monotonic()
    pods_path = f"/api/v1/namespaces/{options.namespace}/pods"
    while True:
        pods: list[Object] = [*cluster.list(pods_path, {"labelSelector": f"{LABEL}={name}"})]
        phases = Counter(pod.get("status", {}).get("phase", "Pending") for pod in pods)
        if phases["Succeeded"] + phases["Failed"] == options.ranks:
            return pods
        made = cluster.get(path)
        conditions = (made or {}).get("status", {}).get("conditions", ())
        over = any(one["type"] == "Failed" and one["status"] == "True" for one in conditions)
        if made is None or over or time.monotonic() > end:
            return pods
        if time.monotonic() - said > SAY_S:
            listed = ", ".join(f"{count} {phase}" for phase, count in phases.items() if count)
            say(f"waiting: {listed or 'no pod yet'}")
            said = time.monotonic()
        time.sleep(LOOK_S)


def result_of(pod: Object) -> dict[str, Any] | None:
    """What the rank left; None where it left nothing that can be read."""
    for status in pod.get("status", {}).get("containerStatuses", ()):
        message = status.get("state", {}).get("terminated", {}).get("message", "")
        try:
            found = json.loads(message)
        except ValueError:
            continue
        if isinstance(found, dict) and "results" in found:
            return found
    return None


def summary(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Over ranks: the median of medians and of values, the worst P99, right only if all are."""
    by_case: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for rank in ranks:
        for one in rank["results"]:
            by_case.setdefault((one["case"], one["metric"], one["unit"]), []).append(one)
    rows = []
    for (case, metric, unit), found in by_case.items():
        p50 = [one["p50"] for one in found if "p50" in one]
        p99 = [one["p99"] for one in found if "p99" in one]
        rows.append(
            {
                "case": case,
                "metric": metric,
                "unit": unit,
                "value": statistics.median(one["value"] for one in found),
                "p50": statistics.median(p50) if p50 else None,
                "p99": max(p99) if p99 else None,
                "ranks": len(found),
                "verified": all(one["verified"] for one in found),
            }
        )
    return rows


def right(ranks: Sequence[Mapping[str, Any]], wanted: int) -> bool:
    """Whether every rank told of results, all of them verified."""
    return len(ranks) == wanted and all(
        rank["results"] and all(one["verified"] for one in rank["results"]) for rank in ranks
    )


def why(pods: Sequence[Object], ranks: Sequence[Mapping[str, Any]], wanted: int) -> str:
    """What went wrong, by what the ranks and the pods say."""
    errors = sorted({rank["error"] for rank in ranks if "error" in rank})
    if errors:
        return f"the fabric failed: {errors[0]}"
    if len(ranks) == wanted:
        return "wrong bytes arrived: see verified; kubectl epfabric doctor"
    waiting = [text for pod in pods for text in _waits_for(pod)]
    seen = f": {waiting[0]}" if waiting else ""
    return (
        f"only {len(ranks)} of {wanted} ranks told a result{seen}; more --timeout-s, fewer --ranks,"
        " or --keep and look at the pods"
    )


def _waits_for(pod: Object) -> list[str]:
    """Why a pod has not run: what the scheduler or the kubelet says."""
    status = pod.get("status", {})
    found = [
        str(one.get("message") or one.get("reason"))
        for one in status.get("conditions", ())
        if one["type"] == "PodScheduled" and one["status"] == "False"
    ]
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting", {})
        found += [str(waiting.get("message") or waiting["reason"])] if waiting else []
    return found


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
