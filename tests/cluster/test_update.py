"""Agents are replaced under live groups of two fabrics: no group ends by it before its time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from epfabric_crds import names
from harness.audit import Write
from harness.cluster import Cluster
from harness.demo import as_processes, ranks
from harness.demo.checks import Work, check_results, result_of
from harness.demo.show import Show
from harness.demo.site import EXAMPLES, Site
from harness.process import HarnessError, wait_until
from harness.prometheus import Prometheus

WAIT_S = 240.0
WORK = Work(world_size=4, tokens=8, iterations=20, barriers=10, hold_s=0)
PAUSE_S = 20  # before each round: by itself it would end after minutes
OF = "update-test"
FABRICS = {"moe": ("node-0", "node-1", "node-2"), "other": ("node-3",)}
BUSY, IDLE = ("node-0", "node-1"), ("node-2", "node-3")

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Rollout:
    """Two fabrics on a site."""

    site: Site

    def eventually(self, check: Callable[[], bool], what: str) -> None:
        try:
            wait_until(check, WAIT_S, what)
        except HarnessError as error:
            looks = (
                ["get", "epf,epfn,epg", "-A", "-o", "yaml"],
                ["get", "pods", "-A", "-o", "wide"],
            )
            told = [self.site.cluster.try_kubectl(*look).stdout for look in looks]
            raise HarnessError("\n".join([str(error), *told])) from None

    def configure(self, **environ: str) -> None:
        """A new operator, whose agents are started with something else."""
        pairs = [f"{name}={value}" for name, value in environ.items()]
        self.site.kubectl(
            *("set", "env", "deployment/epfabric-operator", "-n", names.NAMESPACE, *pairs)
        )

    def annotate(self, node: str, change: str) -> None:
        self.site.kubectl("annotate", "node", node, f"{names.CORDON_ANNOTATION}{change}")

    def deadline(self, value: str | None) -> None:
        patch = json.dumps({"spec": {"update": {"deadline": value}}})
        self.site.kubectl("patch", "epf", "moe", "--type=merge", "-p", patch)

    def kill_operator(self) -> None:
        selector = "app.kubernetes.io/name=epfabric-operator"
        for pod in self.site.pods(names.NAMESPACE, selector):
            for pid in self.site.pids(pod):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def pods(self) -> dict[str, dict[str, Any]]:
        """The agent's pod of each node, unless it is going."""
        found = self.site.pods(names.NODES_NAMESPACE, "app.kubernetes.io/name=epfabric-agent")
        return {
            pod["spec"]["nodeName"]: pod
            for pod in found
            if pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
        }

    def uids(self) -> dict[str, str]:
        return {node: pod["metadata"]["uid"] for node, pod in self.pods().items()}

    def new(self, before: dict[str, str], *nodes: str) -> bool:
        """Whether all of these have another agent than before, which serves and says so."""
        now = self.uids()
        return all(
            now.get(node) not in (None, before[node])
            and self.told(node).get("status", {}).get("agent", {}).get("podUid") == now[node]
            and self.condition("epfn", node, "Ready").get("status") == "True"
            for node in nodes
        )

    def told(self, node: str) -> dict[str, Any]:
        return self.site.get("epfn", node)

    def condition(self, kind: str, name: str, type_: str) -> dict[str, Any]:
        conditions = self.site.get(kind, name).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == type_), {})

    def waits(self, node: str) -> bool:
        return bool(self.condition("epfn", node, "UpdatePending").get("reason") == "GroupRunning")

    def degraded(self, reason: str) -> bool:
        return bool(self.condition("epf", "moe", "Degraded").get("reason") == reason)

    def done(self, fabric: str) -> bool:
        return bool(self.condition("epf", fabric, "UpdatePending").get("status") == "False")

    def ready(self, fabric: str) -> bool:
        return bool(self.condition("epf", fabric, "Ready").get("status") == "True")

    @contextlib.contextmanager
    def job(self, work: Work, *more: str) -> Iterator[str]:
        """Ranks on BUSY, whose group is Ready: its name. At the end all of it is gone."""
        namespace, job = yaml.safe_load_all((EXAMPLES / "moe-job.yaml").read_text())
        job["spec"] |= {"completions": work.world_size, "parallelism": work.world_size}
        pod = job["spec"]["template"]["spec"]
        pod["affinity"] = {"nodeAffinity": on(BUSY)}
        pod["containers"][0]["command"] += [*work.arguments(), *more]
        pod["containers"][0]["env"][0]["value"] = str(work.world_size)
        for manifest in (namespace, job):
            self.site.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        uid = self.site.get("job", ranks.JOB, "-n", ranks.NAMESPACE)["metadata"]["uid"]
        try:
            self.eventually(lambda: self.phase() == "Ready", "the group to be Ready")
            yield f"{ranks.NAMESPACE}/job-{uid}"
        finally:
            where = ("-n", ranks.NAMESPACE, "--timeout=60s")
            self.site.kubectl("delete", "job", ranks.JOB, "--cascade=foreground", *where)
            self.eventually(lambda: not self.phase(), "the group to be gone")

    def hurry(self) -> None:
        """Ranks pause no more between rounds."""
        for pod in self.site.pods(ranks.NAMESPACE, ranks.SELECTOR):
            for pid in self.site.pids(pod):
                if b"moe_rank.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGUSR1)

    def phase(self) -> str:
        groups = self.site.get("epg", "-n", ranks.NAMESPACE)["items"]
        return str(groups[0].get("status", {}).get("phase", "")) if groups else ""

    def between(self, mark: int, pods: set[str]) -> list[Write]:
        """What the operator wrote from the first deletion of one of these to the last."""
        writes = [
            write
            for write in self.site.cluster.audit.writes(mark)
            if write.agent.startswith("epfabric-operator/") and write.resource != "leases"
        ]
        at = [i for i, w in enumerate(writes) if w.verb == "delete" and w.name in pods]
        assert {writes[i].name for i in at} == pods
        return writes[at[0] : at[-1] + 1]


def on(nodes: tuple[str, ...]) -> dict[str, Any]:
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}
    return {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [term]}]
        }
    }


@pytest.fixture(scope="module")
def rollout(cluster: Cluster, prometheus: Prometheus) -> Iterator[Rollout]:
    with as_processes.furnished(cluster, prometheus, Show(0)) as furnished:
        made = Rollout(furnished)
        made.configure(EPFABRIC_RESYNC_SECONDS="1", EPFABRIC_LEASE_SECONDS="10")
        for name, nodes in FABRICS.items():
            furnished.kubectl("label", "node", *nodes, f"{OF}={name}")
            fabric = yaml.safe_load((EXAMPLES / "moe.yaml").read_text())
            fabric["metadata"]["name"] = name
            fabric["spec"]["nodeSelector"] = {OF: name}
            fabric["spec"]["onRankLoss"] = "Mask"
            furnished.kubectl("apply", "-f", "-", stdin=json.dumps(fabric))
        made.eventually(lambda: all(map(made.ready, FABRICS)), "the fabrics to be Ready")
        try:
            yield made
        finally:
            furnished.kubectl("delete", "namespace", ranks.NAMESPACE, "--ignore-not-found")
            furnished.kubectl("delete", "epf", *FABRICS, "--timeout=60s")


def test_a_running_group_keeps_its_agents_and_the_others_get_new_ones(rollout: Rollout) -> None:
    before = rollout.uids()
    with rollout.job(WORK, f"--pause-s={PAUSE_S}") as group:
        rollout.annotate("node-2", "=rack moves")
        rollout.configure(EPFABRIC_AGENT_IMAGE="epfabric-agent:second")
        rollout.eventually(lambda: rollout.uids().get("node-3") != before["node-3"], "a first one")
        rollout.kill_operator()
        rollout.eventually(lambda: rollout.new(before, *IDLE), "new agents where no group runs")
        rollout.eventually(lambda: all(map(rollout.waits, BUSY)), "the others to say they wait")
        assert {node: rollout.uids()[node] for node in BUSY} == {n: before[n] for n in BUSY}
        for node in BUSY:
            condition = rollout.condition("epfn", node, "UpdatePending")
            told = (f"{group} runs here", condition["lastTransitionTime"], "when it has ended")
            assert [text for text in told if text not in condition["message"]] == []
            assert "newer" in rollout.told(node)["spec"]["cordon"]
        pending = rollout.condition("epf", "moe", "UpdatePending")
        assert (pending["status"], pending["reason"]) == ("True", "GroupRunning")
        assert group in pending["message"]
        assert rollout.phase() == "Ready"

        rollout.hurry()
        rollout.eventually(lambda: ranks.finished(rollout.site), "the exchange to end")
        logs = {
            pod["metadata"]["name"]: rollout.site.logs(pod)
            for pod in rollout.site.pods(ranks.NAMESPACE, ranks.SELECTOR)
        }
        check_results([result_of(text, name) for name, text in logs.items()], WORK)
    rollout.eventually(lambda: rollout.new(before, *BUSY), "new agents where it ran")
    rollout.eventually(lambda: all(map(rollout.done, FABRICS)), "nothing to be pending")
    cordons = {node: rollout.told(node)["spec"].get("cordon") for node in (*BUSY, *IDLE)}
    assert [node for node, text in cordons.items() if text] == ["node-2"]
    assert "rack moves" in (cordons["node-2"] or "")
    annotations = rollout.site.get("node", "node-2")["metadata"]["annotations"]
    assert annotations[names.CORDON_ANNOTATION] == "rack moves"
    rollout.annotate("node-2", "-")


def test_at_the_deadline_the_nodes_of_a_group_go_together(rollout: Rollout) -> None:
    """Also where a lost rank would be masked: else the group would be worn down node by node."""
    before = rollout.uids()
    with rollout.job(Work(world_size=4, tokens=8, iterations=1, barriers=10, hold_s=300)):
        mark = rollout.site.cluster.audit.end()
        victims = {rollout.pods()[node]["metadata"]["name"] for node in BUSY}
        rollout.deadline("1s")
        rollout.configure(EPFABRIC_AGENT_IMAGE="epfabric-agent:third")
        rollout.eventually(lambda: rollout.new(before, *BUSY), "new agents where the group was")
        assert {w.resource for w in rollout.between(mark, victims)} == {"pods"}, "not in one go"
        rollout.eventually(lambda: rollout.phase() == "Failed", "the group's end to be told")
    rollout.deadline(None)
    rollout.eventually(lambda: rollout.done("moe"), "nothing to be pending")


def test_a_new_agent_that_does_not_start_stops_it_until_it_is_set_back(rollout: Rollout) -> None:
    rollout.eventually(lambda: all(map(rollout.done, FABRICS)), "nothing to be pending")
    before = rollout.uids()
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        rollout.configure(EPFABRIC_AGENT_PORT=port)
        rollout.eventually(lambda: rollout.degraded("UpdateStopped"), "the update to stop")
        message = rollout.condition("epf", "moe", "Degraded")["message"]
        assert "does not start" in message
        touched = [n for n in FABRICS["moe"] if rollout.uids().get(n) != before[n]]
        assert len(touched) == 1
        assert touched[0] in message
        assert not any(rollout.told(n)["spec"].get("cordon") for n in FABRICS["moe"])
        rollout.configure(EPFABRIC_AGENT_PORT="0")
        rollout.eventually(lambda: rollout.new(before, *touched), "the old one back")
    rollout.eventually(lambda: all(map(rollout.done, FABRICS)), "nothing to be pending")
    after = rollout.uids()
    assert [n for n in FABRICS["moe"] if after[n] != before[n]] == touched
    rollout.eventually(lambda: rollout.degraded("AgentsReady"), "the fabric to be whole")
