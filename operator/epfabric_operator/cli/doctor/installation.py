"""The installation: CRDs that Helm left old, no leader, CSI driver not registered, no binding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from epfabric_crds import definitions, names

from epfabric_operator.cli import output
from epfabric_operator.cli.doctor.facts import Facts, Finding, Object, some

LEASE_S = 60.0


def check(facts: Facts) -> Iterator[Finding]:
    yield from _definitions(facts)
    yield from _leader(facts)
    yield from _driver(facts)
    yield from _bindings(facts)


def _definitions(facts: Facts) -> Iterator[Finding]:
    if facts.definitions is None:
        return
    there = {one["metadata"]["name"]: one for one in facts.definitions}
    for kind in definitions.FILES:
        wanted = definitions.definition(kind)
        name = wanted["metadata"]["name"]
        missing = sorted(_fields(wanted) - _fields(there[name])) if name in there else ["all"]
        if missing:
            yield Finding(
                "error",
                "old-definitions",
                name,
                f"the cluster's CRD lacks what this program knows: {some(missing)}",
                "Helm itself never upgrades CRDs; the API server refuses agents' statuses "
                "with such fields, whole",
                "upgrade the chart with its hooks, or apply the CRDs of the version that runs",
            )


def _fields(definition: Object) -> set[str]:
    found: set[str] = set()

    def walk(schema: Any, at: str) -> None:
        for name, inner in (schema.get("properties") or {}).items():
            if at != ".metadata":
                found.add(f"{at}.{name}")
                walk(inner, f"{at}.{name}")
        if "items" in schema:
            walk(schema["items"], f"{at}[]")

    for version in definition["spec"]["versions"]:
        walk(version["schema"]["openAPIV3Schema"], "")
    return found


def _leader(facts: Facts) -> Iterator[Finding]:
    lease = facts.operator_lease
    if lease is None and any("Lease" in one for one in facts.unseen):
        return
    spec = (lease or {}).get("spec", {})
    age_s = output.age_s(spec.get("renewTime"), facts.now)
    if age_s is None or age_s > LEASE_S:
        last = f"{spec.get('holderIdentity') or 'nobody'} led last" if lease else "nobody ever led"
        yield Finding(
            "error",
            "no-operator",
            names.OPERATOR_LEASE,
            f"no operator leads: {last}",
            "changes of fabrics wait, agents get no certificates; running groups go on",
            f"kubectl -n {names.NAMESPACE} get pods, then the log of {names.OPERATOR_LEASE}",
        )


def _driver(facts: Facts) -> Iterator[Finding]:
    if facts.csi_nodes is None:
        return
    registered = {
        one["metadata"]["name"]
        for one in facts.csi_nodes
        for driver in one.get("spec", {}).get("drivers") or ()
        if driver["name"] == names.CSI_DRIVER
    }
    ours = [node.metadata.name for node in facts.epnodes]
    missing = [name for name in ours if name not in registered]
    if missing:
        yield Finding(
            "error",
            "driver-not-registered",
            some(missing),
            f"the kubelet does not know the CSI driver {names.CSI_DRIVER}",
            "pods with the annotation stay in ContainerCreating there",
            "is the value kubeletRootDir the kubelet's --root-dir? Else look at epfabric-csi's pod"
            f" of that node (kubectl -n {names.NODES_NAMESPACE} get pods -o wide)",
        )


def _bindings(facts: Facts) -> Iterator[Finding]:
    if facts.bindings is None:
        return
    there = {one["metadata"]["name"] for one in facts.bindings}
    for fabric in facts.fabrics:
        name = fabric.metadata.name
        if names.policy_binding(name) not in there and not fabric.metadata.deletion_timestamp:
            yield Finding(
                "warning",
                "no-binding",
                name,
                "no MutatingAdmissionPolicyBinding opens the injection to its namespaces",
                "annotated pods are refused, unless the webhook serves this cluster",
                "the operator writes it: its log and the fabric's condition Stalled say why not",
            )
