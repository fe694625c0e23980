"""Asks the API server whether an installation works, as `helm test` does; run by command.py.

Every check answers with what is wrong, as one sentence, or with nothing. Nothing is created: pods
are sent as dry runs, and a policy of the chart lets the account do no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from epfabric_crds import names
from epfabric_crds.convert import from_dict
from epfabric_crds.selector import LabelSelector

from epfabric_operator import paths
from epfabric_operator.chores import definitions
from epfabric_operator.chores.leaving import uses_volume
from epfabric_operator.chores.outcome import shown
from epfabric_operator.kube import ApiError, Kube, Object

NO_FABRIC = "epfabric-check-no-such-fabric"
LEASE_S = 30.0
EVERY_S = 2.0


@dataclass(frozen=True)
class Check:
    name: str
    wrong: Callable[[], str | None]


def checks(kube: Kube, namespace: str, nodes_namespace: str) -> list[Check]:
    return [
        Check("definitions are served", partial(_definitions, kube)),
        Check("the operator is ready", partial(_operator, kube, namespace)),
        Check("an operator leads", partial(_leader, kube, namespace)),
        Check("the CSI driver is registered", partial(_driver, kube)),
        Check("the CSI driver runs on its nodes", partial(_driver_pods, kube, nodes_namespace)),
        Check("a wrong annotation is refused", partial(_guard, kube)),
        Check("an annotated pod is injected", partial(_injection, kube)),
        Check("fabrics are Ready", partial(_fabrics, kube)),
    ]


def run(kube: Kube, namespace: str, nodes_namespace: str, timeout_s: float) -> list[str]:
    """The names of the checks that failed to the end of the time; prints a line for each."""
    end = time.monotonic() + timeout_s
    todo = checks(kube, namespace, nodes_namespace)
    while True:
        results = [(check, _outcome(check)) for check in todo]
        for check, wrong in results:
            if wrong is None:
                print(f"ok    {check.name}", flush=True)
        todo = [check for check, wrong in results if wrong is not None]
        if not todo or time.monotonic() > end:
            break
        time.sleep(EVERY_S)
    for check, wrong in results:
        if wrong is not None:
            print(f"FAIL  {check.name}: {wrong}", flush=True)
    return [check.name for check in todo]


def _outcome(check: Check) -> str | None:
    try:
        return check.wrong()
    except ApiError as error:
        return str(error)


def _definitions(kube: Kube) -> str | None:
    names_ = [crd["metadata"]["name"] for crd in definitions.shipped()]
    found = ((name, definitions.unready(kube.get(f"{definitions.PATH}/{name}"))) for name in names_)
    wrong = [f"{name}: {why}" for name, why in found if why]
    return "; ".join(wrong) or None


def _operator(kube: Kube, namespace: str) -> str | None:
    deployment = kube.get(paths.deployment(namespace, names.OPERATOR_ACCOUNT))
    if deployment is None:
        return f"there is no Deployment {names.OPERATOR_ACCOUNT} in {namespace}"
    wanted = deployment["spec"].get("replicas", 1)
    ready = (deployment.get("status") or {}).get("readyReplicas", 0)
    if wanted and ready >= wanted:
        return None
    return (
        f"{ready} of {wanted} replicas are ready:"
        f" kubectl -n {namespace} describe pods -l app.kubernetes.io/name=epfabric-operator"
    )


def _leader(kube: Kube, namespace: str) -> str | None:
    """Whether the Lease is renewed; asks no clock but its own."""
    path = f"{paths.leases(namespace)}/{names.OPERATOR_LEASE}"
    end = time.monotonic() + LEASE_S
    first = None
    while time.monotonic() < end:
        spec = (kube.get(path) or {}).get("spec") or {}
        mark = (spec.get("holderIdentity"), spec.get("renewTime"))
        if mark[0] and first is not None and mark != first:
            return None
        first = first or mark
        time.sleep(0.5)
    holder = (first or (None,))[0]
    return f"the Lease of {holder or 'nobody'} was not renewed in {LEASE_S:.0f} s"


def _driver(kube: Kube) -> str | None:
    driver = kube.get(f"/apis/storage.k8s.io/v1/csidrivers/{names.CSI_DRIVER}")
    if driver is None:
        return f"there is no CSIDriver {names.CSI_DRIVER}"
    if driver["spec"].get("volumeLifecycleModes") != ["Ephemeral"]:
        return (
            f"the CSIDriver {names.CSI_DRIVER} is not ours: it must have the mode Ephemeral alone"
        )
    return None


def _driver_pods(kube: Kube, namespace: str) -> str | None:
    found = kube.get(f"{paths.daemonsets(namespace)}/epfabric-csi")
    if found is None:
        return f"there is no DaemonSet epfabric-csi in {namespace}"
    status = found.get("status") or {}
    wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    seen = status.get("observedGeneration") == found["metadata"]["generation"]
    return None if seen and ready >= wanted else f"ready on {ready} of {wanted} nodes"


def _guard(kube: Kube) -> str | None:
    try:
        kube.create(paths.pods("default"), pod(NO_FABRIC), dry_run=True)
    except ApiError as error:
        if "epfabric-guard" in error.message:
            return None
        return f"another refused the pod first: {error.message}"
    return (
        f"a pod with the annotation {names.FABRIC_ANNOTATION} for no fabric was admitted: the"
        " ValidatingAdmissionPolicy epfabric-guard is not in force"
    )


def _injection(kube: Kube) -> str | None:
    """Of every fabric that some namespace may use, one pod in the first such namespace."""
    wrong = []
    namespaces = [
        (one["metadata"]["name"], one["metadata"].get("labels") or {})
        for one in kube.pages("/api/v1/namespaces")[0]
        if not one["metadata"].get("deletionTimestamp")
    ]
    for fabric in kube.pages(paths.FABRICS)[0]:
        selector = from_dict(LabelSelector, fabric["spec"]["namespaceSelector"], strict=False)
        chosen = next((n for n, labels in namespaces if _may(selector, n, labels)), None)
        if chosen is None:
            continue  # no pod can use it yet
        name = fabric["metadata"]["name"]
        try:
            made = kube.create(paths.pods(chosen), pod(name), dry_run=True)
            if not uses_volume(made):
                wrong.append(f"{name}: a pod in {chosen} got no volume")
        except ApiError as error:
            wrong.append(f"{name}: a pod in {chosen} was refused: {error.message}")
    return shown(wrong) or None


def _may(selector: LabelSelector, name: str, labels: dict[str, str]) -> bool:
    excluded = ("kube-system", names.NAMESPACE, names.NODES_NAMESPACE)
    return name not in excluded and selector.matches(labels)


def _fabrics(kube: Kube) -> str | None:
    wrong = []
    for fabric in kube.pages(paths.FABRICS)[0]:
        conditions = (fabric.get("status") or {}).get("conditions") or []
        ready = next((c for c in conditions if c["type"] == "Ready"), None)
        if ready is None or ready["status"] != "True":
            why = (ready or {}).get("message") or "nobody has looked at it yet"
            wrong.append(f"{fabric['metadata']['name']}: {why}")
    return shown(wrong) or None


def pod(fabric: str) -> Object:
    """One that a `restricted` namespace admits."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "epfabric-check-",
            "annotations": {names.FABRIC_ANNOTATION: fabric, names.GROUP_ANNOTATION: "check"},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "check",
                    "image": "epfabric-check",
                    "resources": {
                        "requests": {"cpu": "1m", "memory": "1Mi"},
                        "limits": {"cpu": "1m", "memory": "1Mi"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }
