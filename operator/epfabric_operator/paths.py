"""URL paths of the API server's resources; used by the edges."""

from epfabric_crds import names

API = f"/apis/{names.GROUP}/{names.VERSION}"
FABRICS = f"{API}/{names.FABRICS}"
EPNODES = f"{API}/{names.NODES}"
NODES = "/api/v1/nodes"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


def fabric(name: str) -> str:
    return f"{FABRICS}/{name}"


def epnode(name: str) -> str:
    return f"{EPNODES}/{name}"


def node(name: str) -> str:
    return f"{NODES}/{name}"


def namespace(name: str) -> str:
    return f"/api/v1/namespaces/{name}"


def bindings(version: str) -> str:
    return f"/apis/admissionregistration.k8s.io/{version}/mutatingadmissionpolicybindings"


def csr(name: str) -> str:
    return f"{CSRS}/{name}"


def daemonsets(namespace: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/daemonsets"


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def configmaps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def secrets(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/secrets"


def leases(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def events(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"


def pod(namespace: str, name: str) -> str:
    return f"{pods(namespace)}/{name}"


def deployment(namespace: str, name: str) -> str:
    return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
