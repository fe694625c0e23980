"""Reads what commands need from the API server and names what is missing; used by all commands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import yaml
from epfabric_crds import EPFabric, EPFabricNode, EPGroup, names
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from epfabric_operator import paths
from epfabric_operator.cli.fault import FAILED, NO_CLUSTER, NO_RIGHT, NOT_FOUND, Fault
from epfabric_operator.kube import ApiError, Kube

GROUPS = f"/apis/{names.API_VERSION}/{names.GROUPS}"
_FORBIDDEN = re.compile(
    r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"( in the namespace "([^"]+)")?'
)
Object = dict[str, Any]
T = TypeVar("T", EPFabric, EPFabricNode, EPGroup)


def connect(kubeconfig: str | None, context: str | None, most_s: float) -> Cluster:
    """By the kubeconfig that kubectl would take. Raises Fault."""
    settings = client.Configuration()
    load: Any = config.load_kube_config
    try:
        load(config_file=kubeconfig, context=context, client_configuration=settings)
    except (ConfigException, OSError, yaml.YAMLError, TypeError, ValueError) as error:
        text = (
            f"no access to a cluster: {error}; give --kubeconfig and --context, or set KUBECONFIG"
        )
        raise Fault(NO_CLUSTER, text) from error
    settings.retries = False
    api = client.ApiClient(configuration=settings)
    api.user_agent = "kubectl-epfabric"
    return Cluster(Kube(api, most_s))


def namespace_of(kubeconfig: str | None, context: str | None) -> str:
    """The namespace that the context names; `default` where it names none."""
    contexts: Any = config.list_kube_config_contexts
    try:
        every, active = contexts(config_file=kubeconfig)
    except (ConfigException, OSError, yaml.YAMLError, TypeError):
        return "default"
    chosen = next((one for one in every if one["name"] == context), active) or {}
    return str(chosen.get("context", {}).get("namespace") or "default")


class Cluster:
    def __init__(self, kube: Kube) -> None:
        self.kube = kube

    # --- what EPFabric's own objects are; each raises Fault

    def fabrics(self) -> list[EPFabric]:
        return self._typed(paths.FABRICS, EPFabric)

    def nodes(self) -> list[EPFabricNode]:
        return self._typed(paths.EPNODES, EPFabricNode)

    def groups(self, namespace: str | None) -> list[EPGroup]:
        """Of one namespace, or of all."""
        where = GROUPS.replace("/epgroups", f"/namespaces/{namespace}/epgroups")
        return self._typed(where if namespace else GROUPS, EPGroup)

    def _typed(self, path: str, kind: type[T]) -> list[T]:
        try:
            items, _ = self.kube.pages(path)
        except ApiError as error:
            if error.status == 404:
                text = "this cluster knows no EPFabric: install the chart (docs/install.md)"
                raise Fault(NOT_FOUND, text) from error
            raise fault_of(error) from error
        for item in items:  # items of a list do not carry them
            item.setdefault("apiVersion", names.API_VERSION)
            item.setdefault("kind", kind.__name__)
        return [kind.from_dict(item, strict=False) for item in items]

    # --- anything

    def list(self, path: str, query: Mapping[str, str] | None = None) -> list[Object]:
        """Raises Fault."""
        try:
            return self.kube.pages(path, query)[0]
        except ApiError as error:
            raise fault_of(error) from error

    def get(self, path: str) -> Object | None:
        """None for what is not there; raises Fault."""
        try:
            return self.kube.get(path)
        except ApiError as error:
            raise fault_of(error) from error

    def create(self, path: str, body: Object) -> Object:
        try:
            return self.kube.create(path, body)
        except ApiError as error:
            raise fault_of(error) from error

    def delete(self, path: str) -> None:
        try:
            self.kube.delete(path)
        except ApiError as error:
            raise fault_of(error) from error


def fault_of(error: ApiError) -> Fault:
    """What the user is told of a refusal."""
    if error.status == 401:
        text = "the API server does not know you: the credentials of this context are not valid"
        return Fault(NO_RIGHT, text)
    if error.status == 403:
        return Fault(NO_RIGHT, f"not allowed: {right_of(error.message)}")
    if error.status == 404:
        return Fault(NOT_FOUND, error.message)
    if error.status == 0:
        return Fault(NO_CLUSTER, f"{error.message}; is the context the right one?")
    return Fault(FAILED, f"the API server refused: {error}")


def right_of(message: str) -> str:
    """The right that a refusal asks for, as one would grant it; else the API server's sentence."""
    found = _FORBIDDEN.search(message)
    if found is None:
        return message
    verb, resource, group, _, namespace = found.groups()
    where = f"in namespace {namespace}" if namespace else "in the whole cluster (a ClusterRole)"
    what = f"{resource}.{group}" if group else resource
    return f"you need the right to {verb} {what} {where}"
