"""Pod Security admits our pods: in the release's namespace as `restricted`, those of nodes not."""

from __future__ import annotations

from typing import Any

import pytest
from chart.conftest import dry
from chart.objects import NODES, SYSTEM, As, Object, Refused
from chart.test_install import rendered
from chart.variants import VARIANTS, objects, render_all
from epfabric_crds import EPFabric
from epfabric_operator.daemonset import daemonsets

# Its priority classes are the administrator's to make.
FOREIGN = "classes and namespace of one's own"
POOLS = [
    {"name": "a", "nodeSelector": {"pool": "a"}},
    {
        "name": "b",
        "nodeSelector": {"pool": "b"},
        "hugepages": {"pageSize": "2Mi", "amount": "64Mi"},
        "resources": {"requests": {"cpu": "1"}},
    },
]


def pods(objects: list[Object]) -> list[Object]:
    """One for each pod template, in its namespace, under the name of its owner."""
    found = []
    for one in objects:
        template = (one.get("spec") or {}).get("template")
        if template is None and one["kind"] == "CronJob":
            template = one["spec"]["jobTemplate"]["spec"]["template"]
        spec = template["spec"] if template else one["spec"] if one["kind"] == "Pod" else None
        if spec is not None:
            metadata = {"name": one["metadata"]["name"], "namespace": one["metadata"]["namespace"]}
            found.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return found


def agents(**spec: Any) -> list[Object]:
    """The pods that the operator's DaemonSets of a fabric make."""
    selectors: Object = {"nodeSelector": {}, "namespaceSelector": {}}
    body = {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPFabric",
        "metadata": {"name": "moe"},
        "spec": {**selectors, **spec},
    }
    return pods(daemonsets(EPFabric.from_dict(body), "agent:1", 7470, NODES))


@pytest.fixture(scope="module")
def strict(installed: As) -> As:
    labels = installed.get("namespace", SYSTEM)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    labels = installed.get("namespace", NODES)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    return installed


@pytest.fixture(scope="module")
def variants() -> dict[str, list[Object]]:
    """With hooks and tests."""
    return {name: pods(objects(files)) for name, files in render_all().items()}


@pytest.mark.parametrize("variant", sorted(VARIANTS.keys() - {FOREIGN}))
def test_every_pod_of_the_chart_is_admitted_where_it_runs(
    strict: As, variants: dict[str, list[Object]], variant: str
) -> None:
    made = variants[variant]
    assert {pod["metadata"]["namespace"] for pod in made} == {SYSTEM, NODES}
    for pod in made:
        # The account of a hook may come and go; admission of the pod is what is asked.
        dry(strict, {**pod, "spec": {**pod["spec"], "serviceAccountName": "default"}})


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_the_csi_driver_is_privileged_and_mounts_back_into_the_node(variant: str) -> None:
    privileged, propagating = [], []
    for pod in pods(rendered(VARIANTS[variant])):
        for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]:
            name = pod["metadata"]["name"]
            if container.get("securityContext", {}).get("privileged"):
                privileged.append(name)
            for mount in container.get("volumeMounts", []):
                propagating += [name] * (mount.get("mountPropagation", "None") != "None")
    assert privileged == ["epfabric-csi"]
    assert propagating == ["epfabric-csi"]


@pytest.mark.parametrize("spec", [{}, {"agent": {"pools": POOLS}}], ids=["all", "pools"])
def test_every_agent_is_admitted_where_it_runs(strict: As, spec: dict[str, Any]) -> None:
    for pod in agents(**spec):
        dry(strict, pod)


def test_what_needs_privileges_is_admitted_nowhere_else(strict: As) -> None:
    """So that the labels are seen to be enforced."""
    ours = [*pods(rendered({})), *agents()]
    needing = [pod for pod in ours if pod["metadata"]["namespace"] == NODES]
    assert len(needing) >= 2
    for pod in needing:
        moved = {**pod, "metadata": {**pod["metadata"], "namespace": SYSTEM}}
        moved["spec"] = {**pod["spec"], "serviceAccountName": "default"}
        with pytest.raises(Refused, match="violates PodSecurity"):
            dry(strict, moved)
