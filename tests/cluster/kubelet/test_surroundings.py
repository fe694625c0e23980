"""What a pod's processes find: environment, token, rights, volumes, as its stored spec says."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest
from harness.kubelet.api import Json
from harness.kubelet.kubelet import PROJECT
from harness.process import wait_until

from .bench import SPACE, WAIT_S, Running


def test_environment_holds_what_the_spec_says_and_nothing_of_the_harness(
    running: Running,
) -> None:
    assert "PYTEST_CURRENT_TEST" in os.environ
    references = {
        "NODE": "spec.nodeName",
        "ADDRESS": "status.hostIP",
        "UID": "metadata.uid",
        "WHY": "metadata.annotations['why']",
    }
    env: list[Json] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in references.items()
    ]
    env.append({"name": "ALL", "value": "$(WHY)/$(NODE) $$(NODE) $(NONE)"})
    running.create(
        "environment",
        ["python3", "-c", "import json, os; print(json.dumps(dict(os.environ)))"],
        restartPolicy="Never",
        container={"env": env},
    )
    pod = running.await_phase("environment", "Succeeded")
    found = json.loads(running.log("environment"))
    node = pod["spec"]["nodeName"]
    assert found["UID"] == pod["metadata"]["uid"]
    assert found["ADDRESS"] == running.nodes.addresses[node]
    assert found["ALL"] == f"a test/{node} $(NODE) $(NONE)"
    assert found["KUBERNETES_SERVICE_PORT"] == str(running.api.host_and_port[1])
    assert "PYTEST_CURRENT_TEST" not in found


REVIEW = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
request = urllib.request.Request(
    f"https://{host}:{port}/apis/authentication.k8s.io/v1/selfsubjectreviews", b"{}",
    {"Authorization": "Bearer " + open(folder + "/token").read(),
     "Content-Type": "application/json"})
trust = ssl.create_default_context(cafile=folder + "/ca.crt")
print(json.dumps(json.load(urllib.request.urlopen(request, context=trust))["status"]["userInfo"]))
print(open(folder + "/namespace").read())
"""


def test_token_is_bound_to_the_pod_and_names_its_node(running: Running) -> None:
    running.create(
        "review",
        ["python3", "-c", REVIEW],
        restartPolicy="Never",
        securityContext={"runAsNonRoot": True},
    )
    pod = running.await_phase("review", "Succeeded")
    review, namespace = running.log("review").splitlines()
    user = json.loads(review)
    extra = {key.rpartition("/")[2]: value for key, value in user["extra"].items()}
    assert user["username"] == f"system:serviceaccount:{SPACE}:default"
    assert extra["node-name"] == [pod["spec"]["nodeName"]]
    assert extra["pod-uid"] == [pod["metadata"]["uid"]]
    assert namespace == SPACE


def test_volumes_hold_what_they_name(running: Running) -> None:
    space = f"/api/v1/namespaces/{SPACE}"
    running.api.post(f"{space}/configmaps", {"metadata": {"name": "c"}, "data": {"a.txt": "A"}})
    running.api.post(
        f"{space}/secrets", {"metadata": {"name": "s"}, "stringData": {"key": "hidden"}}
    )
    mark = f"/var/lib/{uuid.uuid4()}"
    volumes: list[Json] = [
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "secret", "secret": {"secretName": "s", "items": [{"key": "key", "path": "p/q"}]}},
        {"name": "empty", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": mark, "type": "DirectoryOrCreate"}},
        {
            "name": "fields",
            "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]},
        },
    ]
    script = (
        "cat /etc/new/config/a.txt /v/secret/p/q /v/fields/n; echo mine > /v/empty/x;"
        f" cat /v/empty/x > {mark}/x; touch /etc/new/config/no || echo refused"
    )
    mounts: list[Json] = [
        {"name": name, "mountPath": f"/v/{name}"} for name in ("secret", "empty", "fields")
    ]
    mounts += [
        {"name": "config", "mountPath": "/etc/new/config", "readOnly": True},
        {"name": "host", "mountPath": mark},
    ]
    running.create(
        "volumes",
        ["sh", "-c", script],
        restartPolicy="Never",
        volumes=volumes,
        container={"volumeMounts": mounts},
    )
    pod = running.await_phase("volumes", "Succeeded")
    assert running.log("volumes").startswith("Ahiddenvolumes")
    assert "refused" in running.log("volumes")
    host = running.kubelet.host_path(pod["spec"]["nodeName"], mark)
    assert (host / "x").read_text() == "mine\n"
    assert not Path(mark).exists()
    assert not Path("/etc/new").exists()


def test_changed_configmap_reaches_a_running_pod(running: Running) -> None:
    maps = f"/api/v1/namespaces/{SPACE}/configmaps"
    running.api.post(maps, {"metadata": {"name": "turns"}, "data": {"word": "first"}})
    running.create(
        "turns",
        ["sh", "-c", "while :; do cat /c/word; echo; sleep 0.5; done"],
        volumes=[{"name": "c", "configMap": {"name": "turns"}}],
        container={"volumeMounts": [{"name": "c", "mountPath": "/c"}]},
        terminationGracePeriodSeconds=0,
    )
    running.await_log("turns", "first")
    running.api.patch(f"{maps}/turns", {"data": {"word": "second"}})
    running.await_log("turns", "second")
    running.delete("turns")


def test_volume_over_the_programs_does_not_hide_them(running: Running) -> None:
    """As when the project lies under /tmp and a pod brings a /tmp of its own."""
    above = str(PROJECT.parent)
    if above == "/":
        pytest.skip("the project lies in the root: nothing can be mounted above it")
    program = f"import os, yaml; open('{above}/mine', 'w'); print(sorted(os.listdir('{above}')))"
    running.create(
        "covered",
        ["python3", "-c", program],
        restartPolicy="Never",
        securityContext={"runAsUser": 65532},
        volumes=[{"name": "tmp", "emptyDir": {}}],
        container={"volumeMounts": [{"name": "tmp", "mountPath": above}]},
    )
    running.await_phase("covered", "Succeeded")
    assert running.log("covered").strip() == str(sorted(["mine", PROJECT.name]))


def test_missing_volume_is_an_event_and_the_pod_starts_once_it_is_there(running: Running) -> None:
    running.create(
        "late",
        ["cat", "/c/word"],
        restartPolicy="Never",
        volumes=[{"name": "c", "configMap": {"name": "late"}}],
        container={"volumeMounts": [{"name": "c", "mountPath": "/c"}]},
    )
    events = f"/api/v1/namespaces/{SPACE}/events"

    def said() -> bool:
        found = running.api.get(events, fieldSelector="involvedObject.name=late")["items"]
        return any("configmap 'late' not found" in event["message"] for event in found)

    wait_until(said, WAIT_S, "an event about the missing ConfigMap")
    assert running.phase("late") == "Pending"
    maps = f"/api/v1/namespaces/{SPACE}/configmaps"
    running.api.post(maps, {"metadata": {"name": "late"}, "data": {"word": "there"}})
    running.await_phase("late", "Succeeded")
    assert running.log("late") == "there"


def test_processes_have_the_rights_of_their_security_context(running: Running) -> None:
    look = "id -u; id -g; grep -E 'CapEff|NoNewPrivs' /proc/self/status; ls /root"
    running.create(
        "restricted",
        ["sh", "-c", look],
        restartPolicy="Never",
        securityContext={"runAsUser": 1234, "runAsGroup": 2345},
        container={
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
        },
    )
    running.create("root", ["sh", "-c", look], restartPolicy="Never")
    running.await_phase("restricted", "Succeeded")
    running.await_phase("root", "Succeeded")
    assert running.log("restricted").split()[:6] == [
        "1234",
        "2345",
        "CapEff:",
        "0000000000000000",
        "NoNewPrivs:",
        "1",
    ]
    uid, _, _, capabilities, _, no_new = running.log("root").split()[:6]
    admin = 1 << 21
    assert (uid, no_new) == ("0", "0")
    assert int(capabilities, 16) != 0
    assert int(capabilities, 16) & admin == 0
