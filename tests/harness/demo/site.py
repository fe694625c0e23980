"""The demo's cluster: control plane, Prometheus, chart, nodes and their pods; and its deletion."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from epfabric_crds import names
from harness import helm
from harness.cluster import Cluster
from harness.demo.checks import Wrong
from harness.demo.show import Show
from harness.process import HarnessError
from harness.prometheus import Prometheus

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
FABRIC = "moe"
RELEASE = "epfabric"
LABEL = "epfabric.io/demo"
OURS = (names.NAMESPACE, names.NODES_NAMESPACE)
READY_SECONDS = 100
GONE_SECONDS = 90.0
LEASES = "lease.coordination.k8s.io/" + names.agent_lease("")

Pod = dict[str, Any]  # as the API server has it


@dataclass(frozen=True)
class Site:
    """What the steps of the demo work on; made by as_pods.py, for fast tests by as_processes.py."""

    cluster: Cluster
    prometheus: Prometheus
    show: Show
    pids: Callable[[Pod], list[int]]  # the processes of a pod, as this machine numbers them
    logs: Callable[[Pod], str]  # what its one container has said
    networks: Sequence[Sequence[str]] = ((),)  # what begins a command in each network of agents

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl(*args, stdin=stdin)

    def get(self, *args: str) -> dict[str, Any]:
        """An object by kind and name, or a list, as kubectl shows it."""
        if len(args) in (2, 4) and args[1] != "-n":
            return self.cluster.objects().get(args[0], args[1], *args[3:])
        found: dict[str, Any] = json.loads(self.kubectl("get", *args, "-o", "json"))
        return found

    def agents(self) -> dict[int, str]:
        """The processes of the agents: pid → node."""
        return {
            pid: pod["spec"]["nodeName"]
            for pod in self.pods(names.NODES_NAMESPACE, f"{names.FABRIC_LABEL}={FABRIC}")
            for pid in self.pids(pod)
        }

    def pods(self, namespace: str, selector: str) -> list[Pod]:
        return self.cluster.objects().listed("pods", namespace, selector)


@contextmanager
def furnished(site: Site, values: Mapping[str, Any]) -> Iterator[Site]:
    """The site with the chart installed; at the end the chart is gone again."""
    try:
        install(site, values)
        yield site
        uninstall(site)
    except (HarnessError, Wrong):
        site.show.note(what_pods_do(site))
        raise


def install(site: Site, values: Mapping[str, Any]) -> None:
    make_namespace(site.cluster)
    helm.install(site.cluster.kubeconfig, RELEASE, names.NAMESPACE, values)
    rollout = ("rollout", "status", f"--timeout={READY_SECONDS}s", "-n")
    site.kubectl(*rollout, names.NAMESPACE, "deployment/epfabric-operator")
    site.kubectl(*rollout, names.NODES_NAMESPACE, "daemonset/epfabric-csi")
    site.show.note(site.kubectl("get", "nodes", "-o", "wide"))
    for namespace in OURS:
        site.show.note(site.kubectl("get", "pods", "-n", namespace, "-o", "wide"))


def make_namespace(cluster: Cluster) -> None:
    """The release's, as docs/install.md labels it."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": names.NAMESPACE, "labels": labels}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def uninstall(site: Site) -> None:
    helm.uninstall(site.cluster.kubeconfig, RELEASE, names.NAMESPACE)
    await_empty(
        lambda: [pod["metadata"]["name"] for ours in OURS for pod in site.pods(ours, "")],
        "pods of the chart",
    )
    site.show.note("chart uninstalled, none of its pods is left")


def what_pods_do(site: Site) -> str:
    """For whoever looks for the reason of a failure."""
    looks = (["get", "pods", "-A", "-o", "wide"], ["events", "-A", "--types=Warning"])
    return "\n".join(site.cluster.try_kubectl(*look).stdout for look in looks)


def apply_fabric(site: Site) -> None:
    """examples/moe.yaml, with the address of this run's Prometheus."""
    site.show.step("apply examples/moe.yaml and wait until it is Ready")
    fabric = yaml.safe_load((EXAMPLES / "moe.yaml").read_text())
    telemetry = {"endpoint": site.prometheus.otlp, "interval": "1s"}
    fabric["spec"]["telemetry"] = {**fabric["spec"].get("telemetry", {}), **telemetry}
    site.show.note(site.kubectl("apply", "-f", "-", stdin=json.dumps(fabric)))
    site.show.note(
        site.kubectl(
            "wait", "--for=condition=Ready", f"epf/{FABRIC}", f"--timeout={READY_SECONDS}s"
        )
    )
    site.show.note(site.kubectl("get", "epf,epfn"))


def delete_fabric(site: Site) -> None:
    """Deletes the fabric; nothing of it may remain."""
    site.show.step("delete the fabric")
    agents = site.agents()
    site.show.note(site.kubectl("delete", f"epf/{FABRIC}", "--timeout=60s"))
    await_empty(lambda: remains(site, agents), "what is left of the fabric")
    site.show.note("no agent, no label, no binding, no object of it is left")


def remains(site: Site, agents: dict[int, str]) -> list[str]:
    """Everything that belongs to the fabric: objects, labels, pods, processes."""
    label = f"{names.FABRIC_LABEL}={FABRIC}"
    left = site.kubectl("get", "epf,epfn", "-o", "name").split()
    left += site.kubectl("get", "nodes", "-l", label, "-o", "name").split()
    namespaced = "daemonsets,pods,configmaps"
    left += site.kubectl("get", namespaced, "-A", "-l", label, "-o", "name").split()
    leases = site.kubectl("get", "leases", "-n", names.NODES_NAMESPACE, "-o", "name").split()
    left += [lease for lease in leases if lease.startswith(LEASES)]
    bindings = site.kubectl("get", "mutatingadmissionpolicybindings", "-o", "name").split()
    left += [name for name in bindings if name.endswith("/" + names.policy_binding(FABRIC))]
    return left + [f"process {pid}" for pid in agents if Path(f"/proc/{pid}").exists()]


def await_empty(look: Callable[[], list[str]], what: str) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while left := look():
        if time.monotonic() > deadline:
            raise Wrong(f"{what} after {GONE_SECONDS:.0f} s: {', '.join(left)}")
        time.sleep(0.25)
