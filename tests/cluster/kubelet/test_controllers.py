"""Jobs and DaemonSets see their pods as on real nodes; a killed harness leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

from harness.cluster import Cluster
from harness.kubelet.kubelet import PROJECT
from harness.process import wait_until

from .bench import LABEL, PODS, SPACE, WAIT_S, Running


def test_job_sees_the_exit_codes_of_its_pods(running: Running) -> None:
    jobs = f"/apis/batch/v1/namespaces/{SPACE}/jobs"

    def job(name: str, script: str) -> None:
        template = {
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {LABEL: "true"},
                "containers": [{"name": "main", "image": "none", "command": ["sh", "-c", script]}],
            }
        }
        spec = {
            "completions": 4,
            "parallelism": 4,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": template,
        }
        running.api.post(jobs, {"metadata": {"name": name}, "spec": spec})

    def ended(name: str, how: str) -> bool:
        conditions = running.api.get(f"{jobs}/{name}")["status"].get("conditions", [])
        return any(c["type"] == how and c["status"] == "True" for c in conditions)

    job("good", "exit 0")
    job("bad", "exit $((3 * JOB_COMPLETION_INDEX))")
    wait_until(lambda: ended("good", "Complete"), WAIT_S, "the good job's end")
    wait_until(lambda: ended("bad", "Failed"), WAIT_S, "the bad job's end")
    assert running.api.get(f"{jobs}/good")["status"]["completedIndexes"] == "0-3"
    for name in ("good", "bad"):
        running.api.delete(f"{jobs}/{name}", {"propagationPolicy": "Background"})


def test_daemonset_has_one_ready_pod_on_each_node(running: Running) -> None:
    sets = f"/apis/apps/v1/namespaces/{SPACE}/daemonsets"
    template = {
        "metadata": {"labels": {"app": "each"}},
        "spec": {
            "hostNetwork": True,
            "nodeSelector": {LABEL: "true"},
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "none", "command": ["sleep", "1000"]}],
        },
    }
    spec = {"selector": {"matchLabels": {"app": "each"}}, "template": template}
    running.api.post(sets, {"metadata": {"name": "each"}, "spec": spec})

    def ready() -> bool:
        return bool(running.api.get(f"{sets}/each")["status"].get("numberReady") == 4)

    wait_until(ready, WAIT_S, "four ready pods")
    pods = running.api.get(PODS, labelSelector="app=each")["items"]
    assert {p["spec"]["nodeName"]: p["status"]["podIP"] for p in pods} == running.nodes.addresses
    pids = [pid for pod in pods for pid in running.pids(pod["metadata"]["name"])]
    assert len(pids) == 4
    running.api.delete(f"{sets}/each", {"propagationPolicy": "Foreground"})
    wait_until(
        lambda: not running.api.get(PODS, labelSelector="app=each")["items"], WAIT_S, "no pod"
    )
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


LONE = """
import signal, sys
from pathlib import Path
from harness.kubelet.kubelet import Kubelet
from harness.nodes import Nodes
config, folder = map(Path, sys.argv[1:])
nodes = Nodes(config, 1, labels={"lone": "true"}, prefix="lone")
nodes.start()
Kubelet(config, folder, nodes.addresses).start()
signal.pause()
"""


def processes_with(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in words:
                found.append(words.decode(errors="replace"))
    return found


def test_killed_harness_leaves_no_process(running: Running, cluster: Cluster) -> None:
    harness = subprocess.Popen(
        [sys.executable, "-c", LONE, cluster.kubeconfig, cluster.folder / "lone"],
        env={**os.environ, "PYTHONPATH": str(PROJECT / "tests")},
    )
    mark = str(uuid.uuid4())
    try:
        child = f"while :; do sleep 0.1; done # {mark}"
        running.create(
            "lone",
            ["sh", "-c", 'trap "" TERM; setsid sh -c "$0" & sh -c "$0"', child],
            nodeSelector={"lone": "true"},
        )
        running.await_phase("lone", "Running")
        wait_until(lambda: len(processes_with(mark)) >= 3, WAIT_S, "the pod and its children")
    finally:
        harness.kill()
        harness.wait()
    wait_until(lambda: not processes_with(mark), WAIT_S, "no process of the pod")
    running.delete("lone", gracePeriodSeconds=0)
    running.api.delete("/api/v1/nodes/lone-0", {})
