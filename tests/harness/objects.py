"""What kubectl does with one object, by the same requests but in this process: tests do it often.

Used through `Cluster.objects()`. Objects come without `managedFields`, as kubectl shows them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.kubelet.api import APPLY, MERGE, Api, ApiError, Json
from harness.process import wait_until

DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
KNOWN_S = 10.0  # until a new kind is told of
GONE_S = 90.0
STRICT = {"fieldValidation": "Strict"}


@dataclass(frozen=True)
class Kind:
    """A resource that the API server has; `names` are what it may be called."""

    base: str  # with its group and version
    plural: str
    kind: str
    namespaced: bool
    names: frozenset[str]

    def path(self, namespace: str) -> str:
        where = f"/namespaces/{namespace or 'default'}" if self.namespaced else ""
        return f"{self.base}{where}/{self.plural}"


class Objects:
    """One API server's objects, as the kubeconfig's user or as the token's."""

    def __init__(self, kubeconfig: Path, token: str = "") -> None:
        self._kinds: tuple[Kind, ...] = ()
        self._api = Api(kubeconfig, token)

    def may_ask(self) -> bool:
        """False while the API server does not know a new token, or what it is bound to."""
        try:
            self._kinds = discovered(self._api)
        except ApiError as error:
            if error.code != 401:
                raise
            return False
        return True

    def get(self, kind: str, name: str, namespace: str = "") -> Json:
        return shown(self._api.get(f"{self._named(kind).path(namespace)}/{name}"))

    def listed(self, kind: str, namespace: str, selector: str) -> list[Json]:
        found = self._api.get(self._named(kind).path(namespace), labelSelector=selector)
        return [shown(one) for one in found["items"]]

    def create(self, made: Json, *, subresource: str = "", dry_run: bool = False) -> Json:
        path = self._of(made).path(made["metadata"].get("namespace", ""))
        if subresource:
            path += f"/{made['metadata']['name']}/{subresource}"
        query = {**STRICT, "fieldManager": "kubectl-create"}
        return shown(self._api.post(path, made, **query, **({"dryRun": "All"} if dry_run else {})))

    def replace(self, made: Json, *, subresource: str = "") -> Json:
        """Whatever its version was, where it names none."""
        path = self._path_of(made)
        metadata = made["metadata"]
        if "resourceVersion" not in metadata:
            version = self._api.get(path)["metadata"]["resourceVersion"]
            made = {**made, "metadata": {**metadata, "resourceVersion": version}}
        path += f"/{subresource}" if subresource else ""
        return shown(self._api.put(path, made, **STRICT, fieldManager="kubectl-replace"))

    def apply(self, made: Json, manager: str, *, subresource: str = "") -> Json:
        """Server-side, whoever owned the fields before."""
        path = self._path_of(made) + (f"/{subresource}" if subresource else "")
        query = {**STRICT, "fieldManager": manager, "force": "true"}
        return shown(self._api.patch(path, made, APPLY, **query))

    def patch(
        self, kind: str, name: str, change: Json, namespace: str = "", *, subresource: str = ""
    ) -> Json:
        """A merge."""
        path = f"{self._named(kind).path(namespace)}/{name}"
        path += f"/{subresource}" if subresource else ""
        query = {**STRICT, "fieldManager": "kubectl-patch"}
        return shown(self._api.patch(path, change, MERGE, **query))

    def delete(self, kind: str, name: str, namespace: str = "", *, grace_s: int = 1) -> None:
        """Returns once it is gone; nothing where it was not there. HarnessError after the bound."""
        path = f"{self._named(kind).path(namespace)}/{name}"
        how = {"propagationPolicy": "Background", "gracePeriodSeconds": grace_s}
        try:
            uid = self._api.get(path)["metadata"]["uid"]
            self._api.delete(path, how)
            wait_until(
                lambda: self._api.get(path)["metadata"]["uid"] != uid, GONE_S, f"{path} to be gone"
            )
        except ApiError as error:
            if error.code != 404:
                raise

    def _path_of(self, made: Json) -> str:
        metadata = made["metadata"]
        return f"{self._of(made).path(metadata.get('namespace', ''))}/{metadata['name']}"

    def _of(self, made: Json) -> Kind:
        version, kind = made["apiVersion"], made["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return self._find(lambda k: k.base == base and k.kind == kind, f"{kind} of {version}")

    def _named(self, name: str) -> Kind:
        return self._find(lambda k: name in k.names, name)

    def _find(self, wanted: Callable[[Kind], bool], what: str) -> Kind:
        """The first one; the API server is asked anew where there is none yet."""
        end = time.monotonic() + KNOWN_S
        while True:
            for kind in self._kinds:
                if wanted(kind):
                    return kind
            if time.monotonic() > end:
                raise ApiError(0, f"the API server has no {what}")
            self._kinds = discovered(self._api)


def discovered(api: Api) -> tuple[Kind, ...]:
    """Those of the core group first, then as the API server orders groups and versions."""
    return tuple(
        kind_of(group["metadata"].get("name", ""), version["version"], resource)
        for root in ("/api", "/apis")
        for group in api.get(root, accept=DISCOVERY)["items"]
        for version in group["versions"]
        for resource in version.get("resources", [])
    )


def kind_of(group: str, version: str, resource: Json) -> Kind:
    plural, kind = resource["resource"], resource["responseKind"]["kind"]
    names = {plural, resource["singularResource"] or kind.lower(), kind.lower()}
    names |= set(resource.get("shortNames", []))
    names |= {f"{name}.{group}" for name in names} if group else set()
    base = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return Kind(base, plural, kind, resource["scope"] == "Namespaced", frozenset(names))


def shown(made: Json) -> Json:
    made["metadata"].pop("managedFields", None)
    return made
