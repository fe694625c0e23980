"""Rights that roles grant to accounts, against those that were used; for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from harness.audit import Use

Object = dict[str, Any]


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource. Empty: the core API, every namespace, every name."""

    account: str  # namespace:name
    group: str
    resource: str
    verb: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        what = f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.account}: {what}" + (f" {self.name}" if self.name else "") + where

    def covers(self, use: Use) -> bool:
        return (
            use.account == self.account
            and (use.group, use.resource) == (self.group, self.resource)
            and self.verb in use.verbs
            and self.namespace in ("", use.namespace)
            and self.name in ("", use.name)
        )


def granted(objects: Iterable[Object]) -> list[Right]:
    """What roles among `objects` give to accounts that bindings among them name."""
    return sorted(set(_granted(list(objects))))


def _granted(objects: list[Object]) -> Iterator[Right]:
    roles = {_key(one): one for one in objects if one["kind"] in ("Role", "ClusterRole")}
    for one in objects:
        if one["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        namespace, reference = one["metadata"].get("namespace", ""), one["roleRef"]
        home = namespace if reference["kind"] == "Role" else ""
        role = roles[reference["kind"], home, reference["name"]]
        for subject, rule in product(one["subjects"], role["rules"]):
            account = f"{subject['namespace']}:{subject['name']}"
            yield from _rights(account, rule, namespace)


def _key(role: Object) -> tuple[str, str, str]:
    metadata = role["metadata"]
    return role["kind"], metadata.get("namespace", ""), metadata["name"]


def _rights(account: str, rule: Object, namespace: str) -> Iterator[Right]:
    parts = (rule["apiGroups"], rule["resources"], rule["verbs"])
    for (group, resource, verb), name in product(product(*parts), rule.get("resourceNames", [""])):
        yield Right(account, group, resource, verb, namespace, name)


def unused(
    rights: Iterable[Right], uses: Iterable[Use], within: Mapping[str, str]
) -> tuple[set[str], set[str]]:
    """What was granted and never used, and those of `within` that are not needed there.

    `within`: what a server checks while it answers a request for another right, which no log
    tells: it is needed where the other one was used.
    """
    uses = [use for use in uses if use.allowed]
    seen = {str(right): any(right.covers(use) for use in uses) for right in rights}
    needed = {right for right, other in within.items() if seen.get(other)}
    idle = {right for right, used in seen.items() if not used} - needed
    return idle, {right for right in within if right not in needed or seen.get(right, True)}


def refused(rights: Iterable[Right], uses: Iterable[Use]) -> set[str]:
    """What these accounts asked for and have no right to.

    What is granted may be refused while roles come or go.
    """
    rights = list(rights)
    accounts = {right.account for right in rights}
    return {
        f"{use.account}: {use.verb} {use.resource} of {use.group or 'core'} ({use.name}"
        f" in {use.namespace or 'the cluster'})"
        for use in uses
        if use.account in accounts and not use.allowed and not any(r.covers(use) for r in rights)
    }
