"""Objects that the chart's tests create, and how they talk to the API server as someone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from harness.cluster import Cluster
from harness.kubelet.api import ApiError
from harness.objects import Objects

SYSTEM = "epfabric-system"
NODES = "epfabric-nodes"
Object = dict[str, Any]


class Refused(Exception):
    """The API server's refusal; the text is what a person reads."""


@dataclass(frozen=True)
class As:
    """The API server, asked with one identity; without a token as the administrator."""

    cluster: Cluster
    token: str = ""

    def run(self, *args: str, stdin: str | None = None) -> str:
        identity = (f"--token={self.token}",) if self.token else ()
        done = self.cluster.try_kubectl(*identity, *args, stdin=stdin)
        if done.returncode != 0:
            raise Refused(done.stderr.strip())
        return done.stdout

    def create(self, made: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        with refusals():
            return self._objects.create(made, subresource=subresource, dry_run=dry_run)

    def replace(self, made: Object, *, subresource: str = "") -> Object:
        with refusals():
            return self._objects.replace(made, subresource=subresource)

    def apply(self, made: Object, manager: str, *, subresource: str = "") -> Object:
        """Server-side apply."""
        with refusals():
            return self._objects.apply(made, manager, subresource=subresource)

    def patch(self, kind: str, name: str, change: Object, namespace: str = "") -> Object:
        with refusals():
            return self._objects.patch(kind, name, change, namespace)

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        with refusals():
            return self._objects.get(kind, name, namespace)

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        # No kubelet runs here that would confirm a pod's end.
        with refusals():
            self._objects.delete(kind, name, namespace, grace_s=0 if kind == "pod" else 1)

    @property
    def _objects(self) -> Objects:
        return self.cluster.objects(self.token)


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise Refused(str(error)) from error


def pod(
    name: str,
    namespace: str,
    *,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    owner: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A pod that a `restricted` namespace admits; `spec` replaces its parts."""
    metadata: Object = {"name": name, "namespace": namespace}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    if owner is not None:
        metadata["ownerReferences"] = [{**owner, "controller": True}]
    made: Object = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container("main")],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**made, **spec}}


def container(name: str, **more: Any) -> Object:
    return {
        "name": name,
        "image": "localhost/none:1",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        **more,
    }


def annotated(fabric: str, group: str | None = None) -> dict[str, str]:
    made = {"epfabric.io/fabric": fabric}
    if group is not None:
        made["epfabric.io/group"] = group
    return made


def namespace(name: str, **labels: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {k.replace("__", "/"): v for k, v in labels.items()}},
    }


def node(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": "a"}, "annotations": {"note": "kept"}},
    }


def fabric(name: str, selector: Object) -> Object:
    return {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPFabric",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"no": "node"}, "namespaceSelector": selector},
    }


def binding(fabric: str, selector: Object) -> Object:
    """As the operator writes it for a fabric."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": f"epfabric-inject-{fabric}"},
        "spec": {
            "policyName": "epfabric-inject",
            "paramRef": {
                "name": fabric,
                "parameterNotFoundAction": "Allow",
            },
            "matchResources": {"namespaceSelector": selector},
        },
    }


def ours(made: Object) -> Object | None:
    """The volume of csi.epfabric.io in a pod, or None."""
    found = [
        volume
        for volume in made["spec"].get("volumes") or []
        if (volume.get("csi") or {}).get("driver") == "csi.epfabric.io"
    ]
    assert len(found) <= 1, found
    return found[0] if found else None


def attributes(made: Object) -> dict[str, str]:
    volume = ours(made)
    assert volume is not None, "the pod has no volume of csi.epfabric.io"
    found: dict[str, str] = volume["csi"]["volumeAttributes"]
    return found
