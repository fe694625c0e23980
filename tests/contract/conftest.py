"""Fixtures of the contract tests: the CRDs on the shared cluster, a stand, a running operator."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import yaml
from contract.stand import MANAGER, NAMESPACE, NODES_NAMESPACE, Stand
from epfabric_crds import names
from epfabric_crds.names import AGENT_ACCOUNT, INJECT_POLICY, OPERATOR_ACCOUNT
from harness import helm
from harness.cluster import Cluster
from harness.process import Process


@pytest.fixture(scope="session")
def api(cluster: Cluster) -> Cluster:
    """The shared cluster, with the CRDs."""
    definitions = str(files("epfabric_crds") / "definitions")
    # No owner is taken from a chart that has installed them before.
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", definitions)
    for plural in ("epfabrics", "epfabricnodes", "epgroups"):
        crd = f"crd/{plural}.epfabric.io"
        cluster.kubectl("wait", "--for=condition=Established", crd, "--timeout=60s")
    return cluster


@pytest.fixture(scope="module")
def stand(api: Cluster) -> Iterator[Stand]:
    if not api.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found"):
        for namespace in (NAMESPACE, NODES_NAMESPACE):
            api.kubectl("create", "namespace", namespace)
        for account in (AGENT_ACCOUNT, "stranger"):
            api.kubectl("create", "serviceaccount", account, "-n", NODES_NAMESPACE)
        api.kubectl("create", "serviceaccount", OPERATOR_ACCOUNT, "-n", NAMESPACE)
        api.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(operator_rights()))
    # A binding can be made only where its policy is. It goes again, so that the chart may come.
    (policy,) = rendered({"MutatingAdmissionPolicy"}, INJECT_POLICY)
    api.objects().apply(policy, MANAGER)
    made = Stand(api)
    try:
        yield made
    finally:
        made.close()
        api.objects().delete(policy["kind"].lower(), INJECT_POLICY)


def rendered(kinds: set[str], name: str) -> list[dict[str, Any]]:
    """The chart's objects of these kinds that are called `name`."""
    # The chart goes into its own namespaces only; the stand is beside it.
    text = helm.template({"injection": {"policyVersion": "v1"}}, names.NAMESPACE)
    for ours, here in ((names.NAMESPACE, NAMESPACE), (names.NODES_NAMESPACE, NODES_NAMESPACE)):
        text = text.replace(f"namespace: {ours}", f"namespace: {here}")
    found = [
        document
        for document in yaml.safe_load_all(text)
        if document and document["kind"] in kinds and document["metadata"]["name"] == name
    ]
    assert {document["kind"] for document in found} == kinds
    return found


def operator_rights() -> list[dict[str, Any]]:
    """The chart's own rights for the operator, under names that no installed chart has."""
    kinds = {"ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"}
    found = rendered(kinds, OPERATOR_ACCOUNT)
    for document in found:
        document["metadata"]["name"] = f"{NAMESPACE}-operator"
        if "roleRef" in document:
            document["roleRef"]["name"] = f"{NAMESPACE}-operator"
    return found


@pytest.fixture(scope="module")
def operator(stand: Stand) -> Iterator[Process]:
    with stand.operator() as process:
        yield process
