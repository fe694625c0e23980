"""The chart as a package: what it renders, refuses, installs and leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from chart.conftest import RELEASE, WITHOUT_PODS
from chart.objects import NODES, SYSTEM, As, Object
from harness import helm
from harness.process import HarnessError

OFFLINE: dict[str, Any] = {"injection": {"policyVersion": "v1"}}
PASSING = {"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses"}


def rendered(values: dict[str, Any]) -> list[Object]:
    text = helm.template({**OFFLINE, **values}, SYSTEM)
    return [one for one in yaml.safe_load_all(text) if one]


def the(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def test_the_chart_lints() -> None:
    findings = helm.lint(OFFLINE)["findings"]
    assert findings["errors"] == []
    serious = [m for m in findings["messages"] if "icon" not in m["error"]]
    assert serious == []


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"kubletRootDir": "/x"}, "kubletRootDir"),
        ({"kubeletRootDir": "relative"}, "kubeletRootDir"),
        ({"kubeletRootDir": "/var/lib/kubelet/"}, "kubeletRootDir"),
        ({"operator": {"replicas": "two"}}, "replicas"),
        ({"operator": {"healthPort": 0}}, "healthPort"),
        ({"agent": {"port": 70000}}, "port"),
        ({"images": {"agent": {"repo": "x"}}}, "repo"),
        ({"images": {"csi": {"digest": "sha256:12"}}}, "digest"),
        ({"global": {"registry": "https://registry.example"}}, "registry"),
        ({"injection": {"policyVersion": "v2"}}, "policyVersion"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], says: str) -> None:
    with pytest.raises(HarnessError, match=says):
        helm.template({**OFFLINE, **values}, SYSTEM)


def test_values_reach_what_they_are_for() -> None:
    image = {"repository": "registry.example/agent", "tag": "9", "pullPolicy": "Always"}
    objects = rendered(
        {
            "images": {"agent": image, "csi": {"repository": "registry.example/csi"}},
            "imagePullSecrets": ["pull"],
            "operator": {"replicas": 2, "healthPort": 9000},
            "agent": {"port": 0},
            "kubeletRootDir": "/data/kubelet",
        }
    )
    csi = the(objects, "DaemonSet", "epfabric-csi")["spec"]["template"]["spec"]
    assert csi["containers"][0]["image"] == "registry.example/csi:0.1.0"
    for account in ("epfabric-operator", "epfabric-agent", "epfabric-csi"):
        assert the(objects, "ServiceAccount", account)["imagePullSecrets"] == [{"name": "pull"}]
    assert "--kubelet-root=/data/kubelet" in csi["containers"][0]["args"]
    paths = {volume["hostPath"]["path"] for volume in csi["volumes"]}
    assert {"/data/kubelet/pods", "/data/kubelet/plugins_registry", "/var/lib/epfabric"} < paths
    deployment = the(objects, "Deployment", "epfabric-operator")["spec"]
    assert deployment["replicas"] == 2
    (operator,) = deployment["template"]["spec"]["containers"]
    assert operator["image"] == "epfabric-operator:0.1.0"
    environment = {one["name"]: one.get("value") for one in operator["env"]}
    assert environment["EPFABRIC_AGENT_IMAGE"] == "registry.example/agent:9"
    assert environment["EPFABRIC_AGENT_PORT"] == "0"
    assert environment["EPFABRIC_AGENT_PULL_POLICY"] == "Always"
    assert environment["EPFABRIC_KUBELET_ROOT"] == "/data/kubelet"
    assert {"name": "health", "containerPort": 9000} in operator["ports"]


def test_another_namespace_is_refused_since_agents_would_find_nothing_there() -> None:
    with pytest.raises(HarnessError, match="into the namespace epfabric-system, not elsewhere"):
        helm.template(OFFLINE, "elsewhere")


def inventory(admin: As) -> set[str]:
    """Every object of the cluster but those that come and go by themselves."""
    kinds = admin.run("api-resources", "--verbs=list", "-o", "name").split()
    wanted = ",".join(sorted(set(kinds) - PASSING))
    form = "jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{'\\n'}{end}"
    return set(admin.run("get", wanted, "-A", "-o", form, "--ignore-not-found").splitlines())


def test_an_upgrade_changes_and_an_uninstall_leaves_only_the_definitions(admin: As) -> None:
    kubeconfig = admin.cluster.kubeconfig
    helm.apply_definitions(kubeconfig)
    before = inventory(admin)
    helm.install(kubeconfig, RELEASE, SYSTEM, WITHOUT_PODS)
    try:
        during = inventory(admin)
        assert "CSIDriver /csi.epfabric.io" in during
        assert f"DaemonSet {NODES}/epfabric-csi" in during
        driver = admin.get("csidriver", "csi.epfabric.io")
        assert driver["spec"]["volumeLifecycleModes"] == ["Ephemeral"]
        assert driver["spec"]["podInfoOnMount"] is True
        assert driver["spec"]["attachRequired"] is False
        helm.upgrade(kubeconfig, RELEASE, SYSTEM, {**WITHOUT_PODS, "agent": {"port": 1}})
        (operator,) = admin.get("deployment", "epfabric-operator", SYSTEM)["spec"]["template"][
            "spec"
        ]["containers"]
        assert {"name": "EPFABRIC_AGENT_PORT", "value": "1"} in operator["env"]
    finally:
        helm.uninstall(kubeconfig, RELEASE, SYSTEM)
    for ours in (SYSTEM, NODES):
        admin.run("wait", "pods", "--all", "-n", ours, "--for=delete", "--timeout=60s")
    left = inventory(admin) - before
    definitions = {one for one in left if one.startswith("CustomResourceDefinition ")}
    of_namespaces = set()
    for ours in (SYSTEM, NODES):
        of_namespaces |= {f"Namespace /{ours}", f"ServiceAccount {ours}/default"}
        of_namespaces.add(f"ConfigMap {ours}/kube-root-ca.crt")
    assert left - definitions - of_namespaces == set()
    assert all(one.endswith(".epfabric.io") for one in definitions)
