"""Whether a namespace may use a fabric, from the API server's objects; pure, for the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A label selector as Kubernetes reads it; an empty one selects everything."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(_holds(term, labels) for term in selector.get("matchExpressions") or ())


def tenant(
    fabric_object: Mapping[str, Any] | None, namespace_object: Mapping[str, Any] | None
) -> str:
    """The name of the first tenant that selects the namespace; empty where none does."""
    labels = ((namespace_object or {}).get("metadata") or {}).get("labels") or {}
    for one in ((fabric_object or {}).get("spec") or {}).get("tenants") or ():
        if matches(one.get("namespaceSelector") or {}, labels):
            return str(one["name"])
    return ""


def _holds(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator = term.get("key", ""), term.get("operator")
    values = term.get("values") or ()
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    return False


def refusal(
    fabric: str,
    fabric_object: Mapping[str, Any] | None,
    namespace: str,
    namespace_object: Mapping[str, Any] | None,
) -> str | None:
    """Why the namespace's pods may not use the fabric, or None if they may."""
    if fabric_object is None:
        return f"there is no EPFabric {fabric!r}: see kubectl get epfabrics"
    if (fabric_object.get("metadata") or {}).get("deletionTimestamp"):
        return f"the EPFabric {fabric!r} is being deleted: use another one, or create it again"
    if namespace_object is None:
        return f"there is no namespace {namespace!r}"
    selector = (fabric_object.get("spec") or {}).get("namespaceSelector")
    labels = (namespace_object.get("metadata") or {}).get("labels") or {}
    if selector is None or not matches(selector, labels):
        return (
            f"the namespace {namespace!r} may not use the EPFabric {fabric!r}: its labels do not"
            " match spec.namespaceSelector of the fabric; ask the fabric's administrator"
        )
    return None
