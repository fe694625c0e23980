"""The chart with all its hooks, on nodes whose pods run; for the tests of its life."""

from __future__ import annotations

import json
from dataclasses import dataclass

from chart.conftest import RELEASE
from chart.objects import NODES, SYSTEM, As, Object, Refused, annotated, pod
from harness import helm
from harness.controlplane import free_ports
from harness.kubelet.kubelet import Kubelet
from harness.process import wait_until

FABRIC = "chart-life"
TEAM = "chart-life"
NODE_LABEL = "chart-life"
READY_S = 90.0


@dataclass(frozen=True)
class Site:
    """An administrator, and what runs the pods of the nodes."""

    admin: As
    kubelet: Kubelet
    port: int
    metrics_port: int
    begun: int  # where the audit log was then

    def values(self, **more: Object) -> Object:
        """Pods share this machine's network: ports that nobody has."""
        ports = {"healthPort": self.port, "metricsPort": self.metrics_port}
        operator = {**ports, **more.pop("operator", {})}
        return {"operator": operator, "agent": {"port": 0}, **more}

    def install(self, **more: Object) -> None:
        helm.install(self.admin.cluster.kubeconfig, RELEASE, SYSTEM, self.values(**more))

    def upgrade(self, **more: Object) -> None:
        helm.upgrade(self.admin.cluster.kubeconfig, RELEASE, SYSTEM, self.values(**more))

    def rollback(self, revision: int) -> None:
        helm.rollback(self.admin.cluster.kubeconfig, RELEASE, SYSTEM, revision)

    def uninstall(self) -> None:
        helm.uninstall(self.admin.cluster.kubeconfig, RELEASE, SYSTEM)

    def await_rollout(self) -> None:
        rollout = ("rollout", "status", f"--timeout={READY_S:.0f}s", "-n")
        self.admin.run(*rollout, SYSTEM, "deployment/epfabric-operator")
        self.admin.run(*rollout, NODES, "daemonset/epfabric-csi")

    def job_log(self, job: str) -> str:
        """Of the Job's pod, which stays when the Job failed."""
        found = json.loads(
            self.admin.run("get", "pods", "-n", SYSTEM, "-l", f"job-name={job}", "-o", "json")
        )["items"]
        return "".join(self.kubelet.logs(SYSTEM, p["metadata"]["name"], job) for p in found)

    def names(self, *what: str) -> list[str]:
        return self.admin.run("get", *what, "-o", "name", "--ignore-not-found").split()

    def make_fabric(self) -> None:
        """A fabric of all nodes here, Ready."""
        self.admin.create(
            {
                "apiVersion": "epfabric.io/v1alpha1",
                "kind": "EPFabric",
                "metadata": {"name": FABRIC},
                "spec": {
                    "nodeSelector": {NODE_LABEL: "true"},
                    "namespaceSelector": {"matchLabels": {"team": "life"}},
                    "transport": {"allowTcp": True},
                },
            }
        )
        ready = ("wait", "--for=condition=Ready", f"epfabric/{FABRIC}")
        self.admin.run(*ready, f"--timeout={READY_S:.0f}s")

    def make_pods(self, running: int, pending: int) -> None:
        """Pods of the fabric; those that are pending find no node."""
        for number in range(running + pending):
            made = pod(
                f"user-{number:02}",
                TEAM,
                annotations=annotated(FABRIC, "life"),
                terminationGracePeriodSeconds=1,
            )
            made["spec"]["containers"][0]["command"] = ["sleep", "1000"]
            if number >= running:
                made["spec"]["nodeSelector"] = {"no": "node"}
            self._create_when_admitted(made)
        wait_until(lambda: self.phases().count("Running") == running, READY_S, "running pods")

    def phases(self) -> list[str]:
        form = "jsonpath={range .items[*]}{.status.phase}{'\\n'}{end}"
        return self.admin.run("get", "pods", "-n", TEAM, "-o", form).split()

    def _create_when_admitted(self, made: Object) -> None:
        """The fabric's policies work a moment after it is Ready."""

        def admitted() -> bool:
            try:
                self.admin.create(made)
            except Refused as refusal:
                if "takes pods of the namespace" in str(refusal):
                    return False
                raise
            return True

        wait_until(admitted, READY_S, f"{made['metadata']['name']} is admitted")


def made_site(admin: As, kubelet: Kubelet) -> Site:
    health, metrics = free_ports(2)
    return Site(admin, kubelet, health, metrics, admin.cluster.audit.end())
