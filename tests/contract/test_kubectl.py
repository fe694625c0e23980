"""`kubectl epfabric` run by the real kubectl, found on PATH, against a real API server."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from contract.plugin import (
    BIN,
    TIME_S,
    Done,
    Object,
    condition,
    create,
    made_v1,
    plugin,
    status,
)
from contract.stand import NAMESPACE, WAIT_S, Stand, stamp
from epfabric_crds import names
from epfabric_operator.cli.overview import FABRIC_COLUMNS
from harness.kubectl import PROGRAM
from harness.kubelet.api import ApiError
from harness.process import wait_until

SECRET = "pl4ntedS3cretNobodyMaySee"


@pytest.fixture(scope="module")
def fabric(stand: Stand) -> Iterator[str]:
    """Applied, with two nodes of which one is Ready, and two groups; no operator runs."""
    name = f"{stand.prefix}-cli"
    stand.apply(stand.fabric(name, lowLatency={"packing": 8}))
    status(stand, f"epfabrics/{name}", {"nodes": {"assigned": 2, "ready": 1}, "sessions": 3})
    for node, ready in ((f"{name}-a", "True"), (f"{name}-b", "False")):
        create(stand, "epfabricnodes", "EPFabricNode", node, {"fabric": name, "nodeUid": "u"})
        transport = {"type": "libfabric", "provider": "tcp;ofi_rxm", "reason": "allowed"}
        conditions = [condition("Ready", ready, "NoTransport", "no NIC fits")]
        pairs = {"used": 36, "limit": 4096}
        room = [{"device": "m0", "queuePairs": pairs, "registrations": {"used": 20}}]
        said: Object = {"transport": transport, "nicRoom": room, "conditions": conditions}
        status(stand, f"epfabricnodes/{node}", said)
    for group, phase, why in (
        ("fine", "Ready", "8 ranks"),
        ("broken", "Failed", "barrier 7 of epoch 1 timed out; rank 3 did not come"),
    ):
        where = f"namespaces/{NAMESPACE}/epgroups"
        create(stand, where, "EPGroup", group, {"fabric": name, "worldSize": 8})
        barriers = {"count": 500, "p50Seconds": 12e-6, "p99Seconds": 34e-6, "slowestRank": 3}
        said = {"phase": phase, "reason": why, "epoch": 1, "barriers": barriers}
        status(stand, f"{where}/{group}", said)
    yield name
    # No operator of another test may find them.
    for kind, names_of in (("epf", [name]), ("epfn", [f"{name}-a", f"{name}-b"])):
        stand.cluster.kubectl("delete", kind, *names_of, "--ignore-not-found")
    stand.cluster.kubectl("delete", "epg", "fine", "broken", "-n", NAMESPACE)


@pytest.fixture
def ask(stand: Stand, fabric: str) -> Callable[..., Done]:
    return lambda *words: plugin(*words, kubeconfig=stand.cluster.kubeconfig)


def test_kubectl_runs_the_plugin_and_shows_what_is_not_ready(
    ask: Callable[..., Done], fabric: str
) -> None:
    done = ask("status", fabric)
    assert done.returncode == 1, done.stderr
    heads, row = done.stdout.splitlines()
    assert heads.split() == [name.upper() for name in FABRIC_COLUMNS]
    assert row.split()[:4] == [fabric, "Unknown", "1/2", "3"]
    nodes = ask("nodes", "--fabric", fabric)
    assert nodes.returncode == 1
    assert "NoTransport: no NIC fits" in nodes.stdout
    assert "m0 36/4096 QPs" in nodes.stdout
    assert ask("nodes", f"{fabric}-a").returncode == 0
    groups = ask("groups", "-n", NAMESPACE, "--fabric", fabric, "-o", "json")
    assert groups.returncode == 1
    found = {row["group"]: row for row in json.loads(groups.stdout)}
    assert found["fine"]["p99"] == "34 µs"
    assert found["broken"]["phase"] == "Failed"
    assert ask("groups", "fine", "-n", NAMESPACE).returncode == 0


def test_what_is_not_there_is_said_with_what_is(ask: Callable[..., Done], fabric: str) -> None:
    done = ask("status", "nonsense")
    assert done.returncode == 5
    assert "there is no EPFabric nonsense; there are: " in done.stderr
    assert fabric in done.stderr
    empty = ask("groups", "-n", "kube-public")
    assert empty.returncode == 0
    assert "-A looks in all" in empty.stderr


def test_without_a_cluster_or_a_context_it_says_so(
    ask: Callable[..., Done], tmp_path: Path
) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    gone = plugin("status", kubeconfig=path)
    assert gone.returncode == 3
    assert "no answer from http://127.0.0.1:1" in gone.stderr
    assert "Traceback" not in gone.stderr
    wrong = ask("status", "--context", "nowhere")
    assert wrong.returncode == 3
    assert "nowhere" in wrong.stderr


def test_a_user_without_rights_is_told_which(stand: Stand, fabric: str) -> None:
    stranger = stand.account_kubeconfig("stranger")
    done = plugin("status", kubeconfig=stranger)
    assert done.returncode == 4
    assert "you need the right to list epfabrics.epfabric.io in the whole cluster" in done.stderr
    bench = plugin(
        *("bench", "--fabric", fabric, "--image", "x", "-n", "kube-public"), kubeconfig=stranger
    )
    assert bench.returncode == 4


def test_doctor_finds_what_is_wrong_and_says_what_it_could_not_see(
    ask: Callable[..., Done], stand: Stand, fabric: str
) -> None:
    done = ask("doctor", "-o", "json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    found = {(one["check"], one["subject"]): one for one in report["findings"]}
    broken = found["barrier-time-out", f"{NAMESPACE}/broken"]
    assert "rank 3 did not come" in broken["seen"]
    assert "rdma statistic" in broken["todo"]
    assert ("no-operator", names.OPERATOR_LEASE) in found
    assert ("agent-not-ready", f"{fabric}-b") in found
    assert any(check == "driver-not-registered" for check, _ in found)
    assert any(one.startswith("kubelet of ") for one in report["unseen"]), report["unseen"]


@pytest.fixture
def planted(stand: Stand, fabric: str) -> Iterator[str]:
    """Objects with secrets in our own namespace and in a user's pod."""
    kubectl = stand.cluster.kubectl
    namespaces = [made_v1("Namespace", one) for one in (names.NAMESPACE, names.NODES_NAMESPACE)]
    kubectl(
        "apply",
        "-f",
        "-",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": namespaces}),
    )
    where = {"namespace": names.NODES_NAMESPACE}
    annotations: Object = {"vault/token": SECRET, "other.example/last-applied": SECRET}
    template: Object = {
        "metadata": {
            "labels": {"app.kubernetes.io/name": "epfabric-x"},
            "annotations": annotations,
        },
        "spec": {
            "nodeSelector": {"no": "node"},
            "containers": [
                {
                    "name": "agent",
                    "image": "none",
                    "env": [{"name": "PLAIN", "value": SECRET}],
                    "args": ["--token", SECRET, f"--header=Authorization: Bearer {SECRET}"],
                }
            ],
        },
    }
    spec: Object = {"selector": {"matchLabels": template["metadata"]["labels"]}}
    spec["template"] = template
    daemonset: Object = {"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": spec}
    daemonset["metadata"] = {
        "name": f"epfabric-{stand.prefix}",
        **where,
        "annotations": annotations,
    }
    secret = made_v1("Secret", f"{stand.prefix}-s", **where) | {"stringData": {"k": SECRET}}
    config = made_v1("ConfigMap", f"{stand.prefix}-c", **where) | {"data": {"k": SECRET}}
    user = made_v1("Pod", f"{stand.prefix}-user", namespace=NAMESPACE)
    user["metadata"]["annotations"] = {names.FABRIC_ANNOTATION: fabric, "note": SECRET}
    user["spec"] = template["spec"]
    event = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{stand.prefix}-e", **where},
        "eventTime": stamp(),
        "reason": "Failed",
        "action": "Pull",
        "type": "Warning",
        "reportingController": "x",
        "reportingInstance": "x",
        "note": f"pull https://user:{SECRET}@registry/x failed, password={SECRET}",
        "regarding": {"kind": "Pod", **where, "name": "x"},
    }
    items = [daemonset, secret, config, user, event]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    kubectl("create", "-f", "-", stdin=text)
    endpoint = f"http://user:{SECRET}@collector:4318"
    kubectl(
        *("patch", "epfabric", fabric, "--type=merge", "-p"),
        json.dumps({"spec": {"telemetry": {"endpoint": endpoint}}}),
    )
    try:
        yield SECRET
    finally:
        kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=text)
        kubectl("delete", "namespace", names.NODES_NAMESPACE, names.NAMESPACE, "--ignore-not-found")


def test_a_support_bundle_holds_everything_but_the_secrets(
    ask: Callable[..., Done], stand: Stand, fabric: str, planted: str, tmp_path: Path
) -> None:
    file = tmp_path / "bundle.tar.gz"
    done = ask("gather", "--file", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(file)
    with tarfile.open(file) as archive:
        contents = {
            member.name: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive
        }
    everything = b"\n".join([*contents.values(), *(name.encode() for name in contents)])
    token = stand.cluster.kubectl(
        "config", "view", "--raw", "-o", "jsonpath={.users[0].user.token}"
    )
    for hidden in (planted, token):
        assert hidden.encode() not in everything
        assert base64.b64encode(hidden.encode()) not in everything
    for wanted in ("fabrics", "epnodes", "groups", "nodes", "user-pods", "doctor"):
        assert f"epfabric/{wanted}.json" in contents
    shown = json.loads(contents["epfabric/fabrics.json"])
    (ours,) = [one for one in shown if one["metadata"]["name"] == fabric]
    assert ours["spec"]["telemetry"]["endpoint"] == "http://(hidden)@collector:4318"
    (user,) = json.loads(contents["epfabric/user-pods.json"])
    assert user["metadata"]["annotations"] == {names.FABRIC_ANNOTATION: fabric}
    listed = json.loads(contents[f"epfabric/{names.NODES_NAMESPACE}/daemonsets.json"])
    assert f"epfabric-{stand.prefix}" in {one["metadata"]["name"] for one in listed}
    assert not any("secret" in name for name in contents)
    unwritable = ask("gather", "--file", str(tmp_path / "no" / "folder.tar.gz"))
    assert unwritable.returncode == 6
    assert "another --file" in unwritable.stderr


def rank_result(rank: int, p50: float) -> str:
    one = {"case": "barrier", "metric": "latency", "unit": "us", "value": p50, "p50": p50}
    results = [{**one, "p99": 2 * p50, "verified": True}]
    return json.dumps({"rank": rank, "node": "n", "fabric": "f", "results": results})


@contextlib.contextmanager
def pods_that_run(stand: Stand, messages: list[str], code: int = 0) -> Iterator[list[Object]]:
    """What a kubelet does with the pods of a benchmark: they end and leave a message."""
    over = threading.Event()
    seen: list[Object] = []

    def play() -> None:
        selector = {"labelSelector": "epfabric.io/bench"}
        while not over.wait(0.3):
            pods: list[Object] = []
            with contextlib.suppress(ApiError):  # it is asked again
                pods = stand.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods", **selector)["items"]
            for pod in pods:
                name = pod["metadata"]["name"]
                if name in {one["metadata"]["name"] for one in seen}:
                    continue
                index = int(
                    pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
                )
                ended = {"exitCode": code, "message": messages[index], "finishedAt": stamp()}
                container = {
                    "name": "rank",
                    "image": "x",
                    "imageID": "x",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": ended},
                }
                phase = "Failed" if code else "Succeeded"
                said = {"phase": phase, "containerStatuses": [container]}
                with contextlib.suppress(ApiError):  # the Job that failed has deleted it
                    status(stand, f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", said)
                    seen.append(pod)

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join(WAIT_S)


def test_a_benchmark_runs_as_a_job_of_annotated_pods_and_prints_a_table(
    ask: Callable[..., Done], stand: Stand, fabric: str
) -> None:
    words = ("bench", "--fabric", fabric, "-n", NAMESPACE, "--timeout-s", "100")
    with pods_that_run(stand, [rank_result(0, 10.0), rank_result(1, 30.0)]) as pods:
        done = ask(*words, "--image", "client:1")
    assert done.returncode == 0, done.stderr
    heads, row = done.stdout.splitlines()
    assert row.split() == ["barrier", "latency", "20", "60", "20", "us", "2", "True"]
    assert heads.split()[0] == "CASE"
    assert len(pods) == 2
    for pod in pods:
        assert pod["metadata"]["annotations"][names.FABRIC_ANNOTATION] == fabric
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "client:1"
        assert {"name": "WORLD_SIZE", "value": "2"} in container["env"]
    jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    wait_until(lambda: stand.api.get(jobs)["items"] == [], WAIT_S, "the Job to go")


def test_a_benchmark_whose_ranks_fail_says_why(
    ask: Callable[..., Done], stand: Stand, fabric: str
) -> None:
    words = ("bench", "--fabric", fabric, "-n", NAMESPACE, "--timeout-s", "100", "--image", "x")
    failed = json.dumps({"error": "rank 1 of 2 did not join", "results": []})
    with pods_that_run(stand, [failed, failed], code=1):
        done = ask(*words)
    assert done.returncode == 6
    assert "the fabric failed: rank 1 of 2 did not join" in done.stderr
    unknown = ask("bench", "--fabric", "nonsense", "--image", "x")
    assert unknown.returncode == 5
    no_image = ask("bench", "--fabric", fabric, "-n", NAMESPACE)
    assert no_image.returncode == 5
    assert "--image" in no_image.stderr
    assert ask("bench", "--fabric", fabric, "--ranks", "1").returncode == 2


def test_top_prints_once_where_it_is_asked_to(ask: Callable[..., Done], fabric: str) -> None:
    done = ask("top", "--once")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    for head in ("FABRICS (", "GROUPS (", "NODES ("):
        assert head in done.stdout
    assert f"{fabric}-a" in done.stdout


def test_kubectl_completes_the_plugins_words(stand: Stand, fabric: str) -> None:
    environ = {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "KUBECONFIG": str(stand.cluster.kubeconfig),
        "HOME": "/root",
    }

    def complete(*words: str) -> list[str]:
        done = subprocess.run(
            [str(PROGRAM), "__complete", "epfabric", *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIME_S,
            check=True,
        )
        return done.stdout.splitlines()

    assert complete("gr")[0] == "groups"
    # It asks the cluster with a short bound, and a busy one may miss that.
    wait_until(lambda: fabric in complete("nodes", "--fabric", fabric[:3]), WAIT_S, fabric)


def test_bash_takes_the_script_and_completes_the_bare_command() -> None:
    environ = {**os.environ, "PATH": f"{BIN}:/usr/bin:/bin"}
    program = (
        "source <(kubectl-epfabric completion bash); COMP_WORDS=(kubectl-epfabric to); "
        'COMP_CWORD=1; _kubectl_epfabric; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", program], env=environ, capture_output=True, text=True, timeout=TIME_S
    )
    assert done.stdout.strip() == "top", done.stderr
