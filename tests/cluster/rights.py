"""Which of the rights that our accounts were granted were never used; for test_fabric."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from epfabric_crds.names import NAMESPACE, NODES_NAMESPACE
from harness.audit import Use
from harness.cluster import Cluster

Object = dict[str, Any]


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource. Empty: the core API, every namespace, every name."""

    account: str
    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        what = f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")
        return f"{self.account}: {what}" + (f" {self.name}" if self.name else "")

    def covers(self, use: Use) -> bool:
        return (
            use.user.rpartition(":")[2] == self.account
            and (use.group, use.resource) == (self.group, self.resource)
            and (use.verb == self.verb or (use.made and self.verb == "create"))
            and self.namespace in ("", use.namespace)
            and self.name in ("", use.name)
        )


def granted(cluster: Cluster) -> set[Right]:
    """All that roles of the cluster give to accounts of our namespaces."""
    text = cluster.kubectl(
        *("get", "clusterroles,roles,clusterrolebindings,rolebindings", "-A", "-o", "json")
    )
    return set(_granted(json.loads(text)["items"]))


def _granted(items: list[Object]) -> Iterator[Right]:
    roles = {_key(item): item for item in items if item["kind"] in ("Role", "ClusterRole")}
    for item in items:
        for subject in item.get("subjects") or ():
            if subject.get("namespace") not in (NAMESPACE, NODES_NAMESPACE):
                continue
            namespace = item["metadata"].get("namespace", "")
            reference = item["roleRef"]
            home = namespace if reference["kind"] == "Role" else ""
            role = roles[reference["kind"], home, reference["name"]]
            for rule in role["rules"]:
                yield from _rights(subject["name"], rule, namespace)


def _key(role: Object) -> tuple[str, str, str]:
    metadata = role["metadata"]
    return role["kind"], metadata.get("namespace", ""), metadata["name"]


def _rights(account: str, rule: Object, namespace: str) -> Iterator[Right]:
    parts = (rule.get("apiGroups") or (), rule.get("resources") or (), rule["verbs"])
    for (group, resource, verb), name in product(
        product(*parts), rule.get("resourceNames") or ("",)
    ):
        yield Right(account, group, resource, verb, namespace, name)


def unused(rights: Iterable[Right], uses: set[Use]) -> set[Right]:
    return {right for right in rights if not any(right.covers(use) for use in uses)}
