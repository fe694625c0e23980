"""A pod's life under the stand-in kubelet: start, restart, probes, end, and its status."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from harness.kubelet.api import Json
from harness.process import wait_until

from .bench import LABEL, PODS, WAIT_S, Running


def test_status_tells_what_runs_where(running: Running) -> None:
    running.create("runs", ["sh", "-c", "echo here; exec sleep 1000"])
    status = running.await_phase("runs", "Running")["status"]
    node = running.pod("runs")["spec"]["nodeName"]
    assert status["podIP"] == status["hostIP"] == running.nodes.addresses[node]
    conditions = {c["type"]: c["status"] for c in status["conditions"]}
    wanted = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    assert {kind: conditions[kind] for kind in wanted} == dict.fromkeys(wanted, "True")
    running.await_log("runs", "here")
    (pid,) = running.pids("runs")
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x001000\0"
    running.delete("runs", gracePeriodSeconds=1)
    running.await_gone("runs")
    assert not Path(f"/proc/{pid}").exists()


def test_dead_container_starts_again_and_tells_how_it_died(running: Running) -> None:
    running.create("again", ["sh", "-c", "echo start; exec sleep 1000"])
    running.await_phase("again", "Running")
    (first,) = running.pids("again")
    os.kill(first, signal.SIGKILL)

    def restarted() -> bool:
        status = running.pod("again")["status"]["containerStatuses"][0]
        return bool(status["restartCount"] == 1 and status["ready"])

    wait_until(restarted, WAIT_S, "the restart")
    status = running.pod("again")["status"]["containerStatuses"][0]
    assert status["lastState"]["terminated"]["exitCode"] == 137
    assert running.pids("again") != [first]
    assert running.log("again") == "start\nstart\n"
    running.delete("again", gracePeriodSeconds=0)


def test_command_that_does_not_exist_is_told_in_the_status(running: Running) -> None:
    running.create("nowhere", ["no-such-program"], restartPolicy="Never")
    status = running.await_phase("nowhere", "Failed")["status"]["containerStatuses"][0]
    assert status["state"]["terminated"]["reason"] == "StartError"
    assert "no-such-program" in status["state"]["terminated"]["message"]


def test_image_gives_the_entry_point_where_the_container_has_no_command(running: Running) -> None:
    container = {"image": "registry.example:5000/x/speaker:1.2", "args": ["$(HOME)"]}
    running.api.post(
        PODS,
        {
            "metadata": {"name": "entry"},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {LABEL: "true"},
                "containers": [{"name": "main", **container}],
            },
        },
    )
    running.await_phase("entry", "Succeeded")
    assert running.log("entry") == "image says /\n"


def test_deletion_asks_first_and_kills_what_does_not_listen(running: Running) -> None:
    polite = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    # A child in a session of its own, which neither signal to the parent's group reaches.
    deaf = "trap '' TERM; setsid sleep 1000 & echo up; while :; do sleep 0.1; done"
    running.create("polite", ["sh", "-c", polite])
    running.create("deaf", ["sh", "-c", deaf])
    running.await_log("polite", "up")
    running.await_log("deaf", "up")
    wait_until(
        lambda: any(
            b"1000" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in running.pids("deaf")
        ),
        WAIT_S,
        "the child",
    )
    pids = running.pids("polite") + running.pids("deaf")
    assert len(pids) >= 3
    running.delete("polite", gracePeriodSeconds=30)
    running.delete("deaf", gracePeriodSeconds=1)
    running.await_gone("polite")
    running.await_gone("deaf")
    assert "asked" in running.log("polite")
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_init_containers_run_one_after_the_other_and_a_failed_one_ends_the_pod(
    running: Running,
) -> None:
    def step(number: int, code: int) -> Json:
        script = f"echo {number} >> /shared/steps; exit {code}"
        mounts = [{"name": "shared", "mountPath": "/shared"}]
        return {
            "name": f"step-{number}",
            "image": "none",
            "command": ["sh", "-c", script],
            "volumeMounts": mounts,
        }

    for name, code in (("steps", 0), ("stumbles", 3)):
        running.create(
            name,
            ["cat", "/shared/steps"],
            restartPolicy="Never",
            initContainers=[step(1, 0), step(2, code)],
            volumes=[{"name": "shared", "emptyDir": {}}],
            container={"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
        )
    running.await_phase("steps", "Succeeded")
    assert running.log("steps") == "1\n2\n"
    status = running.await_phase("stumbles", "Failed")["status"]
    assert status["initContainerStatuses"][1]["state"]["terminated"]["exitCode"] == 3
    assert running.log("stumbles") == ""


def test_probes_decide_on_ready_and_restart(running: Running) -> None:
    check: Json = {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1}
    running.create(
        "probed",
        ["sh", "-c", "while [ ! -e /tmp/ready ]; do sleep 0.1; done; sleep 1000"],
        container={
            "readinessProbe": check,
            "livenessProbe": {
                "exec": {"command": ["test", "!", "-e", "/tmp/sick"]},
                "periodSeconds": 1,
                "failureThreshold": 1,
            },
        },
    )
    running.await_phase("probed", "Running")

    def status() -> Json:
        found: Json = running.pod("probed")["status"]["containerStatuses"][0]
        return found

    assert not status()["ready"]
    Path(f"/proc/{running.pids('probed')[0]}/root/tmp/ready").touch()
    wait_until(lambda: status()["ready"], WAIT_S, "ready")
    Path(f"/proc/{running.pids('probed')[0]}/root/tmp/sick").touch()
    wait_until(lambda: status()["restartCount"] == 1, WAIT_S, "the restart of the sick one")
    running.delete("probed", gracePeriodSeconds=0)
