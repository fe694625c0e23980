"""Every variant of the chart, hooks and tests among it, before kubeconform and kube-score."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from chart import schemas
from chart.objects import As, Object
from chart.variants import VARIANTS, objects, render_all
from harness.build import KUBERNETES, programs

# Kinds that the test cluster does not serve, with where they come from.
UNKNOWN = {
    "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy": "Kubernetes 1.34 and 1.35",
    "security.openshift.io/v1/SecurityContextConstraints": "OpenShift's own API",
    "monitoring.coreos.com/v1/PrometheusRule": "the Prometheus operator's own API",
    "cert-manager.io/v1/Certificate": "cert-manager's own API",
}

HOOKS = ("epfabric-crds", "epfabric-uninstall", "epfabric-uninstall-finish", "epfabric-check")
SERVERS = ("epfabric-csi", "epfabric-slots", "epfabric-operator", "epfabric-webhook", *HOOKS)
# What kube-score would have otherwise: (object, check) → why it stays.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("epfabric-csi", "container-security-context-privileged"): (
        "mounts reach the node, and so the pods, only from a privileged container"
    ),
    ("epfabric-csi", "container-security-context-user-group-id"): "mounting needs root",
    ("epfabric-slots", "container-security-context-user-group-id"): (
        "the kubelet's folders are root's"
    ),
    ("epfabric-slots", "pod-networkpolicy"): "no policy covers a pod in the host's network",
    **{
        (name, "container-resources"): (
            "a CPU limit throttles by quota when a burst comes; the request is what counts, and"
            " memory, which cannot be taken back, has its limit"
        )
        for name in SERVERS
    },
    **{
        (name, "container-image-pull-policy"): (
            "a tag or digest names one image for ever; with Always a registry that is away would"
            " keep pods from starting on nodes that have it"
        )
        for name in SERVERS
    },
    **{
        (name, "pod-networkpolicy"): (
            "hooks run before the chart's policies are made and after they are gone"
        )
        for name in HOOKS
    },
    **{
        (name, "deployment-has-host-podantiaffinity"): (
            "topologySpreadConstraints spread the replicas, over zones too"
        )
        for name in ("epfabric-operator", "epfabric-webhook")
    },
    ("epfabric-operator", "deployment-replicas"): (
        "one leads; its Service shows metrics, which may be away for a moment"
    ),
}
# With networkPolicy.enabled=false.
WITHOUT_POLICIES = {
    ("epfabric-operator", "pod-networkpolicy"),
    ("epfabric-csi", "pod-networkpolicy"),
}


@pytest.fixture(scope="module")
def rendered() -> dict[str, dict[str, str]]:
    return render_all()


@pytest.fixture(scope="module")
def location(
    admin: As, rendered: dict[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> str:
    wanted = {(o["apiVersion"], o["kind"]) for files in rendered.values() for o in objects(files)}
    return schemas.write(admin, tmp_path_factory.mktemp("schemas"), wanted)


def conform(location: str, text: str) -> tuple[int, Object]:
    command = [str(programs("kubeconform")["kubeconform"]), "-strict", "-summary", "-output=json"]
    skip = ",".join(UNKNOWN)
    more = ["-verbose", f"-schema-location={location}", f"-skip={skip}"]
    done = subprocess.run([*command, *more], input=text, capture_output=True, text=True, timeout=60)
    found: Object = json.loads(done.stdout)
    return done.returncode, found


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_manifest_fits_the_api_servers_schema(
    rendered: dict[str, dict[str, str]], location: str, variant: str
) -> None:
    files = rendered[variant]
    code, found = conform(location, "\n---\n".join(files.values()))
    wrong = [one for one in found["resources"] if one["status"] in ("statusInvalid", "statusError")]
    assert wrong == []
    assert code == 0
    skipped = [o for o in objects(files) if f"{o['apiVersion']}/{o['kind']}" in UNKNOWN]
    assert found["summary"]["valid"] == len(objects(files)) - len(skipped)


def test_a_manifest_with_a_wrong_field_would_be_found(location: str) -> None:
    wrong: Object = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "x"},
        "spec": {"maxUnavailble": 1},
    }
    code, found = conform(location, yaml.safe_dump(wrong))
    assert code == 1
    assert "maxUnavailble" in json.dumps(found)


def score(text: str) -> set[tuple[str, str]]:
    """(object, check) of every check that is not passed."""
    version = ".".join(KUBERNETES.split(".")[:2])
    command = [str(programs("kubescore")["kube-score"]), "score", "--output-format=json"]
    more = [f"--kubernetes-version=v{version}", "-"]
    done = subprocess.run([*command, *more], input=text, capture_output=True, text=True, timeout=60)
    assert done.stdout, done.stderr
    return {
        (one["object_meta"]["name"], check["check"]["id"])
        for one in json.loads(done.stdout)
        for check in one["checks"]
        if not check["skipped"] and check["grade"] < 10
    }


def test_kube_score_has_nothing_but_what_is_argued(rendered: dict[str, dict[str, str]]) -> None:
    seen: set[tuple[str, str]] = set()
    for variant, files in rendered.items():
        found = score("\n---\n".join(files.values()))
        if variant == "by other tools":
            found -= WITHOUT_POLICIES
        assert found - set(EXCEPTIONS) == set(), variant
        seen |= found
    assert set(EXCEPTIONS) - seen == set(), "exceptions that nothing needs any more"


def test_every_job_is_bounded(rendered: dict[str, dict[str, str]]) -> None:
    """Helm waits for hooks; a pod that is never started must not hold it for ever."""
    for files in rendered.values():
        for one in objects(files):
            if one["kind"] == "Job":
                assert one["spec"]["activeDeadlineSeconds"] <= 700
                assert one["spec"]["backoffLimit"] == 0
            if one["kind"] == "Pod":
                assert one["spec"]["activeDeadlineSeconds"] <= 700


def test_paths_of_templates_are_the_topics() -> None:
    folder = Path(__file__).resolve().parents[2] / "charts/epfabric"
    assert not (folder / "crds").exists(), "Helm would never upgrade what lies there"
