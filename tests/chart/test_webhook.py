"""The webhook makes the same pods as the policy, byte for byte, and is nobody's but theirs."""

from __future__ import annotations

import base64
import datetime
import json
import random
import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart.conftest import FABRIC, OTHER, PLAIN, TEAM, TEAM_A, wait_until_effective
from chart.objects import SYSTEM, As, Object, annotated, binding, container, pod
from chart.test_injection import until
from chart.test_install import the
from cryptography.hazmat.primitives.asymmetric import ec
from epfabric_operator.serving import issue, pem_of
from harness import helm
from harness.kubelet.api import Api, ApiError
from harness.process import Process, Processes
from harness.rights import granted, refused, unused

OPERATOR = Path(sys.executable).with_name("epfabric-operator")
RANDOM_PODS = 24
MODE: Object = {"injection": {"mode": "webhook"}}
BINDING = f"epfabric-inject-{FABRIC}"


def stored(api: Api, made: Object) -> tuple[str, Any]:
    """What the API server would keep of the pod, or what it says against it."""
    where = made["metadata"]["namespace"]
    try:
        found = api.post(f"/api/v1/namespaces/{where}/pods?dryRun=All", made)
    except ApiError as error:
        return "refused", str(error)
    metadata = {k: v for k, v in found["metadata"].items() if k in ("annotations", "labels")}
    return "stored", json.dumps([metadata, found["spec"]])


def some(seed: str) -> list[Object]:
    """Pods with a bit of everything, and some that nobody may have."""
    chance = random.Random(seed)
    own_mount = {"name": "epfabric", "mountPath": "/var/run/epfabric"}
    ours = {"name": "EPFABRIC_FABRIC", "value": "mine"}
    csi = {"driver": "csi.epfabric.io", "volumeAttributes": {"fabric": "x"}}
    fixed: list[Object] = [
        {},
        {"nodeSelector": {"a": "b"}},
        {"nodeSelector": {"epfabric.io/fabric": FABRIC}},
        {"nodeSelector": {"epfabric.io/fabric": "other", "a": "b"}},
        {"volumes": [{"name": "epfabric", "emptyDir": {}}]},
        {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "epfabric", "csi": csi}]},
        {"containers": [container("main", env=[ours, {"name": "A", "value": "1"}])]},
        {"containers": [container("main", env=[{"name": "A", "value": "1"}, ours, ours])]},
        {"containers": [container("main", volumeMounts=[own_mount])]},
        {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [
                container("main", volumeMounts=[{"name": "v", "mountPath": "/var/run/epfabric"}])
            ],
        },
    ]
    pods = [
        pod(f"fixed-{i}", TEAM, annotations=annotated(FABRIC), **s) for i, s in enumerate(fixed)
    ]
    pods += [identified(f"owned-{i}", extra) for i, extra in enumerate(IDENTITIES)]
    pods += [
        pod("elsewhere", OTHER, annotations=annotated(FABRIC)),
        pod("misspelt", TEAM, annotations=annotated("chart-meo")),
        pod("wrong-group", TEAM, annotations=annotated(FABRIC, "No Label")),
        pod("plain", TEAM),
    ]
    return pods + [drawn(chance, f"drawn-{i}") for i in range(RANDOM_PODS)]


OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "ranks", "uid": "0-1"}
LWS = "leaderworkerset.sigs.k8s.io"
IDENTITIES: list[Object] = [
    {"owner": OWNER},
    {"owner": {**OWNER, "apiVersion": "x/v1", "kind": "AVeryLongKindThatNobodyWouldEverName"}},
    {"owner": OWNER, "labels": {"jobset.sigs.k8s.io/jobset-uid": "77"}},
    {"labels": {f"{LWS}/name": "serve", f"{LWS}/group-index": "3"}},
    {"labels": {f"{LWS}/name": "s" * 60, f"{LWS}/group-index": "3", f"{LWS}/group-key": "k1"}},
    {
        "labels": {
            "training.kubeflow.org/operator-name": "mpi-operator",
            "training.kubeflow.org/job-name": "train",
        }
    },
    {"owner": OWNER, "annotations": annotated(FABRIC, "mine")},
]


def identified(name: str, extra: Object) -> Object:
    return pod(name, TEAM, **{"annotations": annotated(FABRIC), **extra})


def drawn(chance: random.Random, name: str) -> Object:
    def few(names: list[str]) -> list[str]:
        return chance.sample(names, chance.randrange(len(names) + 1))

    def one(which: str) -> Object:
        env = few(["A", "EPFABRIC_SOCKET", "B", "EPFABRIC_FABRIC", "C"])
        mounts = few(["/a", "/b", "/var/run/epfabric/x"])
        return container(
            which,
            env=[{"name": e, "value": chance.choice(["", "1", "$(A)"])} for e in env],
            volumeMounts=[{"name": "data", "mountPath": m} for m in mounts],
        )

    return pod(
        name,
        TEAM,
        annotations=annotated(FABRIC, chance.choice([None, "g"])),
        volumes=[{"name": v, "emptyDir": {}} for v in ["data", *few(["x", "y"])]],
        containers=[one(c) for c in ["main", *few(["side", "car"])]],
        initContainers=[one(c) for c in few(["first", "second"])],
        nodeSelector=dict.fromkeys(few(["zone", "kind"]), "v"),
    )


@pytest.fixture(scope="module")
def by_policy(installed: As) -> tuple[list[Object], list[tuple[str, Any]]]:
    """Pods, and what the policy makes of them."""
    seed = secrets.token_hex(4)
    print(f"seed {seed}")
    pods = some(seed)
    api = Api(installed.cluster.kubeconfig)
    return pods, [stored(api, made) for made in pods]


@pytest.fixture(scope="module")
def server(installed: As, by_policy: object) -> Iterator[Process]:
    """The chart's webhook in place of its policy, at an address of this machine."""
    objects = [o for o in yaml.safe_load_all(helm.template(MODE, SYSTEM)) if o]
    wanted = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    rights = [
        o for o in objects if o["kind"] in wanted and o["metadata"]["name"] == "epfabric-webhook"
    ]
    configuration = the(objects, "MutatingWebhookConfiguration", "epfabric-inject")
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    certificate = issue(["127.0.0.1"], key, None, now, datetime.timedelta(days=1))
    with Processes("epfabric-webhook-") as processes:
        folder = processes.folder / "certificate"
        folder.mkdir()
        (folder / "tls.crt").write_bytes(certificate)
        (folder / "tls.key").write_bytes(pem_of(key))
        installed.run("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
        token = installed.run("create", "token", "epfabric-webhook", "-n", SYSTEM).strip()
        config = yaml.safe_load(installed.cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        process = processes.start(
            "webhook",
            [
                *(OPERATOR, "webhook", "--port=0", "--health-port=0"),
                *(f"--certificate={folder}", f"--kubeconfig={folder / 'kubeconfig'}"),
            ],
        )
        until(lambda: "webhook on port" in process.log.read_text(), process.tail())
        found = re.search(r"webhook on port (\d+)", process.log.read_text())
        assert found
        (webhook,) = configuration["webhooks"]
        webhook["clientConfig"] = {
            "url": f"https://127.0.0.1:{found[1]}/mutate",
            "caBundle": base64.b64encode(certificate).decode(),
        }
        installed.delete("mutatingadmissionpolicybinding", BINDING)
        installed.run("apply", "-f", "-", stdin=json.dumps(configuration))
        try:
            wait_until_effective(installed)
            yield process
        finally:
            installed.delete("mutatingwebhookconfiguration", "epfabric-inject")
            installed.run("delete", "-f", "-", stdin=yaml.safe_dump_all(rights))
            installed.create(binding(FABRIC, TEAM_A))
            wait_until_effective(installed)


def test_the_webhook_makes_what_the_policy_makes(
    installed: As, by_policy: tuple[list[Object], list[tuple[str, Any]]], server: Process
) -> None:
    api = Api(installed.cluster.kubeconfig)
    pods, expected = by_policy
    outcomes = [outcome for outcome, _ in expected]
    assert outcomes.count("stored") >= RANDOM_PODS
    assert outcomes.count("refused") >= 4
    # Nothing but the webhook does it now.
    assert not installed.run("get", "mutatingadmissionpolicybindings", "-o", "name").strip()
    for made, by in zip(pods, expected, strict=True):
        assert stored(api, made) == by, json.dumps(made)

    rights = granted(o for o in yaml.safe_load_all(helm.template(MODE, SYSTEM)) if o)
    rights = [right for right in rights if right.account == f"{SYSTEM}:epfabric-webhook"]
    uses = installed.cluster.audit.uses()
    assert rights
    assert (unused(rights, uses, {}), refused(rights, uses)) == ((set(), set()), set())


def test_a_webhook_that_is_down_is_felt_by_annotated_pods_alone(
    installed: As, before: Object, server: Process
) -> None:
    """The last test of this file: the server does not come back."""
    api = Api(installed.cluster.kubeconfig)
    plain = pod("plain", TEAM)
    expected = stored(api, plain)
    assert expected[0] == "stored"
    server.stop()
    assert stored(api, plain) == expected
    assert stored(api, pod("plain", PLAIN, annotations={"some": "thing"}))[0] == "stored"
    outcome, says = stored(api, pod("asks", TEAM, annotations=annotated(FABRIC)))
    assert outcome == "refused"
    assert 'failed calling webhook "inject.epfabric.io"' in says


def test_a_cluster_that_serves_no_policy_gets_the_webhook() -> None:
    def kinds(values: Object) -> set[str]:
        objects = [o for o in yaml.safe_load_all(helm.template(values, SYSTEM)) if o]
        return {o["kind"] for o in objects if o["metadata"]["name"] == "epfabric-inject"}

    assert kinds({}) == {"MutatingWebhookConfiguration"}
    assert kinds({"injection": {"policyVersion": "v1"}}) == {"MutatingAdmissionPolicy"}
    assert kinds({"injection": {"mode": "webhook", "policyVersion": "v1"}}) == {
        "MutatingWebhookConfiguration"
    }
    with pytest.raises(Exception, match=r"use Kubernetes 1\.36 or newer"):
        kinds({"injection": {"mode": "policy"}})


def test_cert_manager_may_make_the_certificate() -> None:
    manager = {"enabled": True, "issuerRef": {"kind": "Issuer", "name": "ours"}}
    values = {"injection": {"mode": "webhook", "webhook": {"certManager": manager}}}
    objects = [o for o in yaml.safe_load_all(helm.template(values, SYSTEM)) if o]
    certificate = the(objects, "Certificate", "epfabric-webhook")["spec"]
    assert certificate["secretName"] == "epfabric-webhook"
    assert certificate["dnsNames"] == [f"epfabric-webhook.{SYSTEM}.svc"]
    configuration = the(objects, "MutatingWebhookConfiguration", "epfabric-inject")
    annotation = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    assert annotation == f"{SYSTEM}/epfabric-webhook"
    assert not [o for o in objects if o["metadata"]["name"] == "epfabric-webhook-certificate"]


def test_two_servers_are_spread_and_one_stays_when_nodes_are_drained() -> None:
    objects = [o for o in yaml.safe_load_all(helm.template(MODE, SYSTEM)) if o]
    deployment = the(objects, "Deployment", "epfabric-webhook")["spec"]
    assert deployment["replicas"] == 2
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    labels = deployment["template"]["metadata"]["labels"]
    budget = the(objects, "PodDisruptionBudget", "epfabric-webhook")["spec"]
    for selector in (spread["labelSelector"], budget["selector"], deployment["selector"]):
        assert selector["matchLabels"].items() <= labels.items()
    assert budget["maxUnavailable"] == 1
    (webhook,) = the(objects, "MutatingWebhookConfiguration", "epfabric-inject")["webhooks"]
    assert webhook["failurePolicy"] == "Fail"
    assert "'epfabric.io/fabric' in" in webhook["matchConditions"][0]["expression"]
