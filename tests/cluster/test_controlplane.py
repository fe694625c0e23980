"""The control plane is a real one: identities, admission and two side by side; and it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.cluster import Cluster
from kubernetes import client

TESTS = Path(__file__).resolve().parents[1]
BOUND_S = 120.0
NAMESPACE = "harness-identity"

POLICY = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: harness-probe}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
  matchConditions:
  - name: annotated
    expression: has(object.metadata.annotations) && 'probe' in object.metadata.annotations
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: 'Object{metadata: Object.metadata{labels: {"seen": "yes"}}}'
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: harness-probe}
spec: {policyName: harness-probe}
"""


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace with an account and a pod that is bound to a node that exists."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("create", "serviceaccount", "probe", "-n", NAMESPACE)
    manifests = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "harness-a"}},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "probe", "namespace": NAMESPACE},
            "spec": {
                "nodeName": "harness-a",
                "serviceAccountName": "probe",
                "containers": [{"name": "probe", "image": "none"}],
            },
        },
    ]
    for manifest in manifests:
        cluster.kubectl("create", "-f", "-", stdin=json.dumps(manifest))
    yield NAMESPACE
    cluster.kubectl("delete", "pod", "probe", "-n", NAMESPACE, "--force", "--grace-period=0")
    cluster.kubectl("delete", "node", "harness-a")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def test_the_server_says_the_version_that_charts_ask_for(cluster: Cluster) -> None:
    answer = json.loads(cluster.kubectl("version", "-o", "json"))
    assert answer["serverVersion"]["gitVersion"].startswith("v1.36.")


def test_a_token_bound_to_a_pod_carries_its_node(cluster: Cluster, namespace: str) -> None:
    pod = json.loads(cluster.kubectl("get", "pod", "probe", "-n", namespace, "-o", "json"))
    token = cluster.kubectl(
        *("create", "token", "probe", "-n", namespace, "--bound-object-kind=Pod"),
        *("--bound-object-name=probe", f"--bound-object-uid={pod['metadata']['uid']}"),
    ).strip()
    review = client.AuthenticationV1Api(cluster.client).create_token_review(
        client.V1TokenReview(spec=client.V1TokenReviewSpec(token=token))
    )
    assert review.status is not None
    assert review.status.user is not None
    assert review.status.user.extra is not None
    assert review.status.user.username == f"system:serviceaccount:{namespace}:probe"
    assert review.status.user.extra["authentication.kubernetes.io/node-name"] == ["harness-a"]


def test_an_account_without_a_role_may_nothing(cluster: Cluster, namespace: str) -> None:
    token = cluster.kubectl("create", "token", "probe", "-n", namespace).strip()
    configuration = client.Configuration()
    configuration.host = cluster.url
    configuration.ssl_ca_cert = str(cluster.control_plane.certificate)
    configuration.api_key = {"authorization": f"Bearer {token}"}
    with client.ApiClient(configuration) as mine, pytest.raises(client.ApiException) as refusal:
        client.CoreV1Api(mine).list_node()
    assert refusal.value.status == 403


def test_mutating_admission_policies_take_effect(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "-f", "-", stdin=POLICY)
    annotated = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"generateName": "m-", "namespace": namespace, "annotations": {"probe": "1"}},
    }
    labels = None
    deadline = time.monotonic() + BOUND_S
    try:
        while labels is None and time.monotonic() < deadline:
            made = cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(annotated))
            labels = json.loads(made)["metadata"].get("labels")
    finally:
        cluster.kubectl("delete", "-f", "-", stdin=POLICY)
    assert labels == {"seen": "yes"}


def test_two_clusters_run_side_by_side_and_a_killed_one_leaves_nothing(cluster: Cluster) -> None:
    """The second is `make cluster` in a process of its own, ended by kill -9."""
    second = subprocess.Popen(
        [sys.executable, "-m", "harness.cluster"],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        folder = folder_of(second)
        assert folder != cluster.folder
        assert len(processes_of(folder)) >= 4
        assert cluster.kubectl("get", "--raw", "/readyz") == "ok"
    finally:
        second.send_signal(signal.SIGKILL)
        second.wait(BOUND_S)
    deadline = time.monotonic() + BOUND_S
    while (folder.exists() or processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not folder.exists()
    assert processes_of(folder) == []
    assert cluster.kubectl("get", "--raw", "/readyz") == "ok"


def folder_of(process: subprocess.Popen[str]) -> Path:
    """Reads what `make cluster` prints until it says that it is up."""
    assert process.stdout is not None
    kubeconfig = None
    for line in process.stdout:
        if line.startswith("kubeconfig"):
            kubeconfig = Path(line.split()[1])
        if "Ctrl-C" in line:
            break
    assert kubeconfig is not None, "the second cluster did not start"
    return kubeconfig.parent


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line names the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if str(folder) in command:
                found.append(int(entry.name))
    return found
