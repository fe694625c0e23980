"""Takes EPFabric out of a cluster, with or without an operator; run by the chart's hooks.

`prepare` runs before Helm deletes the chart: it refuses while pods use our volume, since a pod
that outlives the CSI driver can never end. `finish` runs after it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from epfabric_crds import names

from epfabric_operator import paths
from epfabric_operator.chores import definitions
from epfabric_operator.chores.outcome import SHOWN, Refused, Unfinished, shown, wait
from epfabric_operator.chores.remains import Leftover, authority, of_fabrics, of_operator
from epfabric_operator.kube import Kube, Object

log = logging.getLogger(__name__)
LIVING = "status.phase!=Succeeded,status.phase!=Failed"
LOOK_S = 1.0
OURS = "app.kubernetes.io/name in (epfabric-operator,epfabric-agent,epfabric-csi)"


@dataclass(frozen=True)
class Leave:
    """force: delete the pods that use a fabric. definitions, own_namespace: delete these too."""

    namespace: str
    nodes_namespace: str
    timeout_s: float
    release: str = "epfabric"
    revision: int = 1
    force: bool = False
    definitions: bool = False
    own_namespace: bool = False


def uses_volume(pod: Object) -> bool:
    volumes = (pod.get("spec") or {}).get("volumes") or []
    return any((v.get("csi") or {}).get("driver") == names.CSI_DRIVER for v in volumes)


def refusal(users: list[str], leave: Leave) -> str:
    """What a person reads; `users` are namespace/name.

    Helm marks a release whose pre-delete hook failed as uninstalling, and then upgrades it no
    more: rolled back to the revision that it has, it is deployed again.
    """
    count = len(users)
    listed = "\n".join(f"  {user}" for user in users[:SHOWN])
    more = f"\n  and {count - SHOWN} more" if count > SHOWN else ""
    return (
        f"{count} {'pods still use' if count > 1 else 'pod still uses'} a fabric, and could not end"
        f" without the CSI driver:\n{listed}{more}\n"
        "Nothing was removed. End their jobs and uninstall again; or let the uninstallation delete"
        " these pods:\n"
        f"  helm rollback {leave.release} {leave.revision} -n {leave.namespace}\n"
        f"  helm upgrade {leave.release} CHART -n {leave.namespace} --reuse-values"
        " --set uninstall.force=true\n"
        f"  helm uninstall {leave.release} -n {leave.namespace}"
    )


def prepare(kube: Kube, leave: Leave) -> None:
    """Remove fabrics and all that is of them. Raises Refused, Unfinished, ApiError."""
    end = time.monotonic() + leave.timeout_s
    users = list(_users(kube))
    if users and not leave.force:
        raise Refused(refusal(sorted(users), leave))
    asked: set[str] = set()
    while True:
        # Fabrics first: without them no new pod gets our volume.
        left = [leftover.text for leftover in _remove(of_fabrics(kube, leave.nodes_namespace))]
        users = [] if left else list(_users(kube))
        if users and not leave.force:
            raise Unfinished(
                f"fabrics are removed, but these pods were made meanwhile: {shown(sorted(users))};"
                " end them and uninstall again"
            )
        for user in set(users) - asked:
            log.info("deleting the pod %s", user)
            kube.delete(_pod_path(user))
            asked.add(user)
        left += [f"pod {user}" for user in users]
        if not left:
            return
        if time.monotonic() > end:
            raise Unfinished(f"still there after {leave.timeout_s:.0f} s: {shown(left)}")
        time.sleep(LOOK_S)


def finish(kube: Kube, leave: Leave) -> None:
    """Remove what the operator left: authority, Leases, requests. Raises Unfinished, ApiError."""
    end = time.monotonic() + leave.timeout_s
    _await_pods(kube, leave)
    for path in authority(leave.namespace, leave.nodes_namespace):
        kube.delete(path)
    while True:
        found = [*of_fabrics(kube, leave.nodes_namespace)]
        found += of_operator(kube, leave.namespace, leave.nodes_namespace)
        left = [leftover.text for leftover in _remove(found)]
        if not left:
            break
        if time.monotonic() > end:
            raise Unfinished(f"still there after {leave.timeout_s:.0f} s: {shown(left)}")
        time.sleep(LOOK_S)
    if leave.definitions:
        definitions.delete(kube, max(5.0, end - time.monotonic()))
    if leave.own_namespace:
        _delete_namespace(kube, leave.nodes_namespace, max(5.0, end - time.monotonic()))


def _delete_namespace(kube: Kube, name: str, timeout_s: float) -> None:
    """Until it is gone: an installation that follows would lose what it makes in it."""
    path = f"/api/v1/namespaces/{name}"
    kube.delete(path)
    wait(lambda: [name] if kube.get(path) is not None else [], timeout_s, "namespaces to be gone")


def _await_pods(kube: Kube, leave: Leave) -> None:
    """What could write behind us must be gone. Pods of a lost node stay: then go on."""
    end = time.monotonic() + leave.timeout_s / 4
    query = {"labelSelector": OURS}
    where = {leave.namespace, leave.nodes_namespace}
    while any(kube.pages(paths.pods(namespace), query)[0] for namespace in where):
        if time.monotonic() > end:
            log.warning("pods of EPFabric are still there: going on without waiting for them")
            return
        time.sleep(LOOK_S)


def _remove(leftovers: Iterable[Leftover]) -> list[Leftover]:
    """Try each; what was there is left until it is looked for again and not found."""
    found = list(leftovers)
    for leftover in found:
        log.info("removing %s", leftover.text)
        leftover.remove()
    return found


def _users(kube: Kube) -> Iterable[str]:
    """Living pods of the cluster with our volume, page by page: there may be very many pods."""
    for pod in kube.each("/api/v1/pods", {"fieldSelector": LIVING}):
        if uses_volume(pod):
            yield f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _pod_path(user: str) -> str:
    namespace, _, name = user.partition("/")
    return paths.pod(namespace, name)
