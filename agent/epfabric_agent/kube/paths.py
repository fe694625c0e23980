"""Paths of the objects that an agent reads and writes; for the rest of kube."""

from __future__ import annotations

from urllib.parse import quote

from epfabric_crds import names

NODES = f"/apis/{names.API_VERSION}/{names.NODES}"
NIC_DEVICES = "/apis/configuration.net.nvidia.com/v1alpha1/nicdevices"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def node(name: str) -> str:
    return f"{NODES}/{quote(name, safe='')}"


def node_status(name: str) -> str:
    return f"{node(name)}/status"


def events(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"


def lease(namespace: str, node: str) -> str:
    base = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
    return f"{base}/{quote(names.agent_lease(node), safe='')}"


def ca_bundle(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps/{names.CA_BUNDLE}"


def signing_request(name: str) -> str:
    return f"{REQUESTS}/{quote(name, safe='')}"


def group(namespace: str, name: str) -> str:
    base = f"/apis/{names.API_VERSION}/namespaces/{quote(namespace, safe='')}"
    return f"{base}/{names.GROUPS}/{quote(name, safe='')}"
