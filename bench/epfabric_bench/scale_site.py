"""The chart's rights and policies and one fabric on an API server without nodes; for scale.py."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from epfabric_crds import names
from harness import helm
from harness.cluster import Cluster
from harness.process import Process, wait_until

OPERATOR = Path(sys.executable).with_name("epfabric-operator")
# Workloads need nodes, hooks need pods.
LEFT_OUT = frozenset({"Deployment", "DaemonSet", "Job", "Pod", "PodDisruptionBudget"})
FABRIC = "big"
LABEL = {"epfabric-scale": "true"}
JOBS = "scale-jobs"
READY_S = 300.0
SLOW_S = 600.0  # much at once, on a busy machine


def furnish(cluster: Cluster) -> None:
    """CRDs, then everything of the chart but what would have to run."""
    definitions = str(files("epfabric_crds") / "definitions")
    cluster.kubectl("apply", "--server-side", "-f", definitions)
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    spaces: list[dict[str, Any]] = [{"name": names.NAMESPACE}, {"name": JOBS, "labels": LABEL}]
    cluster.kubectl("apply", "-f", "-", stdin=_stream("Namespace", spaces))
    accounts = [{"name": "default", "namespace": JOBS}]  # no controller makes it
    cluster.kubectl("apply", "-f", "-", stdin=_stream("ServiceAccount", accounts))
    text = helm.template({"injection": {"policyVersion": "v1"}}, names.NAMESPACE)
    found = [d for d in yaml.safe_load_all(text) if d and d["kind"] not in LEFT_OUT]
    found = [d for d in found if "helm.sh/hook" not in d["metadata"].get("annotations", {})]
    found.sort(key=lambda d: d["kind"] != "Namespace")
    text = yaml.safe_dump_all(found)
    cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text, timeout_s=SLOW_S)


def _stream(kind: str, metadata: list[dict[str, Any]]) -> str:
    return yaml.safe_dump_all({"apiVersion": "v1", "kind": kind, "metadata": m} for m in metadata)


def operator(cluster: Cluster, name: str) -> Process:
    """The operator as its account, with the rights that the chart gives it; it need not lead."""
    token = cluster.kubectl(
        *("create", "token", names.OPERATOR_ACCOUNT, "-n", names.NAMESPACE, "--duration=8h")
    ).strip()
    shown = cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json")
    config = json.loads(shown)
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    path = cluster.folder / f"{name}.kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    options = ["--agent-image=none", f"--kubeconfig={path}", "--health-port=0", "--metrics-port=0"]
    # On a busy machine the API server may take seconds to answer.
    options += ["--log-level=debug", "--lease-seconds=60"]
    return cluster.processes.start(name, [OPERATOR, *options])


def apply_fabric(cluster: Cluster) -> None:
    fabric = {
        "apiVersion": names.API_VERSION,
        "kind": "EPFabric",
        "metadata": {"name": FABRIC},
        "spec": {
            "nodeSelector": LABEL,
            "namespaceSelector": {"matchLabels": LABEL},
            "transport": {"allowTcp": True},
        },
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(fabric))


def ready_nodes(cluster: Cluster) -> int:
    """Of the fabric, once it is Ready as a whole."""
    path = f"/apis/{names.API_VERSION}/epfabrics/{FABRIC}"
    status = json.loads(cluster.control_plane.get(path) or b"{}").get("status", {})
    ready = {c["type"]: c["status"] for c in status.get("conditions", ())}.get("Ready")
    return int(status["nodes"]["ready"]) if ready == "True" else 0


def await_injection(cluster: Cluster) -> None:
    """Until the API server has seen the policy's binding."""
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "annotations": {names.FABRIC_ANNOTATION: FABRIC}},
        "spec": {"containers": [{"name": "rank", "image": "none"}]},
    }

    def injected() -> bool:
        command = ("create", "-n", JOBS, "--dry-run=server", "-o", "json", "-f", "-")
        done = cluster.try_kubectl(*command, stdin=json.dumps(probe))
        return done.returncode == 0 and names.CSI_DRIVER in done.stdout

    wait_until(injected, READY_S, "injection")
