"""The chart on the session's control plane, with one fabric bound as the operator does it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from chart.accounts import Accounts, delete_accounts, made_accounts
from chart.objects import (
    SYSTEM,
    As,
    Object,
    Refused,
    annotated,
    attributes,
    binding,
    fabric,
    namespace,
    pod,
)
from harness import helm
from harness.cluster import Cluster
from harness.process import wait_until

RELEASE = "epfabric"
EFFECT_S = 60.0
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
PLAIN = "chart-plain"
TEAM = "chart-team"
OTHER = "chart-other"
FABRIC = "chart-moe"
LAST = "chart-last-policy"
# Nobody runs pods here, and a pod on a node that somebody left would never end.
WITHOUT_PODS: Object = {
    "hooks": {"enabled": False},
    "operator": {"replicas": 0},
    "csi": {"nodeSelector": {"epfabric.io/no-such-node": "true"}},
}
TEAM_A: Object = {"matchLabels": {"team": "a"}}


@pytest.fixture(scope="session")
def admin(cluster: Cluster) -> As:
    return As(cluster)


@pytest.fixture(scope="session")
def namespaces(admin: As) -> Iterator[None]:
    """TEAM may opt in and is `restricted`; OTHER may not; PLAIN lives from before the chart."""
    restricted = {"pod-security.kubernetes.io__enforce": "restricted"}
    made = [
        namespace(PLAIN, team="a"),
        namespace(TEAM, team="a", **restricted),
        namespace(OTHER, team="b"),
    ]
    for one in made:
        admin.create(one)
    wait_for_accounts(admin, [one["metadata"]["name"] for one in made])
    yield
    admin.run("delete", "namespace", PLAIN, TEAM, OTHER, "--wait=false")  # nobody comes after


def wait_for_accounts(admin: As, names: list[str]) -> None:
    end = time.monotonic() + EFFECT_S
    for name in names:
        while True:
            try:
                admin.get("serviceaccount", "default", name)
                break
            except Refused:
                assert time.monotonic() < end, f"no default account in {name}"
                time.sleep(0.2)


@pytest.fixture(scope="session")
def before(admin: As, namespaces: None) -> Object:
    """A pod without the annotation, stored before the chart was ever installed."""
    return stored_spec(admin, "before")


def stored_spec(admin: As, name: str) -> Object:
    """What the API server stores of a pod that has a bit of everything."""
    made = pod(
        name,
        PLAIN,
        annotations={"some": "thing"},
        labels={"app": "plain"},
        nodeSelector={"no": "node"},
        volumes=[{"name": "data", "emptyDir": {}}],
        initContainers=[{"name": "first", "image": "localhost/none:1"}],
    )
    admin.create(made)
    path = f"/api/v1/namespaces/{PLAIN}/pods/{name}"
    found: Object = json.loads(admin.run("get", "--raw", path))
    return found


@pytest.fixture(scope="module")
def installed(admin: As, before: Object) -> Iterator[As]:
    """The chart and one fabric's parameters; waits until all policies decide."""
    # The namespaces stay when the release goes.
    if not admin.run("get", "namespace", SYSTEM, "--ignore-not-found"):
        admin.create(namespace(SYSTEM))
    admin.run("label", "namespace", SYSTEM, RESTRICTED, "--overwrite")
    try:
        helm.apply_definitions(admin.cluster.kubeconfig)
        helm.install(admin.cluster.kubeconfig, RELEASE, SYSTEM, WITHOUT_PODS)
        admin.create(fabric(FABRIC, TEAM_A))
        admin.create(binding(FABRIC, TEAM_A))
        wait_until_effective(admin)
        yield admin
    finally:
        admin.delete("mutatingadmissionpolicybinding", f"epfabric-inject-{FABRIC}")
        admin.delete("epfabrics", FABRIC)
        helm.uninstall(admin.cluster.kubeconfig, RELEASE, SYSTEM)


@pytest.fixture(scope="module")
def accounts(installed: As) -> Iterator[Accounts]:
    yield made_accounts(installed, FABRIC)
    delete_accounts(installed, FABRIC)


def wait_until_effective(admin: As) -> None:
    """Policies work a moment after they are stored: injection here, a refusal there.

    Those stored last may do so later than others: one that is stored after them all is waited for.
    """
    with last_policy(admin):
        wait_until(lambda: refuses_last(admin), EFFECT_S, "the last policy is in force")
    end = time.monotonic() + EFFECT_S
    told = ""
    while time.monotonic() < end:
        try:
            attributes(dry(admin, pod("probe", TEAM, annotations=annotated(FABRIC))))
            dry(admin, pod("probe", OTHER, annotations=annotated(FABRIC)))
            told = "a namespace that may not opt in was not refused"
        except Refused as refusal:
            told = str(refusal)
            if "takes pods of the namespace" in told and OTHER in told:
                return
        except AssertionError as missing:
            told = str(missing)
        time.sleep(0.3)
    pytest.fail(f"the policies have no effect after {EFFECT_S} s: {told}")


@contextmanager
def last_policy(admin: As) -> Iterator[None]:
    """That refuses one ConfigMap. The API server takes all that is stored by then at once."""
    kind = "ValidatingAdmissionPolicy"
    matched = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
    spec: Object = {
        "matchConstraints": {"resourceRules": [{**matched, "resources": ["configmaps"]}]},
        "validations": [{"expression": f"object.metadata.name != '{LAST}'"}],
    }
    bound = {"policyName": LAST, "validationActions": ["Deny"]}
    try:
        admin.create(policy(kind, spec))
        admin.create(policy(f"{kind}Binding", bound))
        yield
    finally:
        for made in (f"{kind}Binding", kind):
            admin.delete(made.lower(), LAST)


def policy(kind: str, spec: Object) -> Object:
    version = "admissionregistration.k8s.io/v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": LAST}, "spec": spec}


def refuses_last(admin: As) -> bool:
    metadata = {"name": LAST, "namespace": OTHER}
    try:
        dry(admin, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    except Refused:
        return True
    return False


def dry(who: As, made: Object) -> Object:
    """What the API server would store."""
    return who.create(made, dry_run=True)
