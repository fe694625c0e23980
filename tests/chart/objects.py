"""Objects that the chart's tests create, and how they talk to the API server as someone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.cluster import Cluster

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

    def create(self, made: Object, *, subresource: str = "") -> Object:
        return self._send("create", made, subresource)

    def replace(self, made: Object, *, subresource: str = "") -> Object:
        return self._send("replace", made, subresource)

    def apply(self, made: Object, manager: str, *, subresource: str = "") -> Object:
        """Server-side apply."""
        how = ["apply", "--server-side", "--force-conflicts", f"--field-manager={manager}"]
        if subresource:
            how.append(f"--subresource={subresource}")
        return self._loaded(*how, "-f", "-", "-o", "json", stdin=json.dumps(made))

    def patch(self, kind: str, name: str, change: Object, *args: str) -> Object:
        text = json.dumps(change)
        return self._loaded("patch", kind, name, "--type=merge", "-p", text, *args, "-o", "json")

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        where = ("-n", namespace) if namespace else ()
        return self._loaded("get", kind, name, *where, "-o", "json")

    def delete(self, kind: str, name: str, namespace: str = "") -> None:
        where = ("-n", namespace) if namespace else ()
        # No kubelet runs here that would confirm a pod's end.
        how = ("--force", "--grace-period=0") if kind == "pod" else ("--now",)
        self.run("delete", kind, name, *where, *how, "--ignore-not-found", "--timeout=60s")

    def _send(self, verb: str, made: Object, subresource: str) -> Object:
        how = [f"--subresource={subresource}"] if subresource else []
        return self._loaded(verb, *how, "-f", "-", "-o", "json", stdin=json.dumps(made))

    def _loaded(self, *args: str, stdin: str | None = None) -> Object:
        found: Object = json.loads(self.run(*args, stdin=stdin))
        return found


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
