"""The agent's sign of life: a Lease that it renews; for kube.mode."""

from __future__ import annotations

import datetime
import os

from epfabric_crds import names

from epfabric_agent.kube import paths
from epfabric_agent.kube.api import Api, Object


def lease_body(namespace: str, node: str, uid: str, now: datetime.datetime) -> Object:
    """`uid` of the EPFabricNode that it goes with."""
    owner = {"apiVersion": names.API_VERSION, "kind": "EPFabricNode", "name": node, "uid": uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": names.agent_lease(node),
            "namespace": namespace,
            "ownerReferences": [owner],
        },
        "spec": {
            "holderIdentity": f"{node}/{os.getpid()}",
            "leaseDurationSeconds": names.LEASE_SECONDS,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def renew(api: Api, namespace: str, node: str, uid: str) -> None:
    """Raises ApiError."""
    body = lease_body(namespace, node, uid, datetime.datetime.now(datetime.UTC))
    api.apply(paths.lease(namespace, node), body, names.AGENT_MANAGER)
