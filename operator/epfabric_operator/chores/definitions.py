"""Applies and removes EPFabric's CustomResourceDefinitions; run by the chart's hooks (command.py).

Helm never upgrades definitions in a chart's crds folder, and would delete them, with all objects,
if they were templates. So they come from this image and are applied before anything else.
"""

from __future__ import annotations

import logging
from functools import partial

from epfabric_crds.definitions import FILES, definition

from epfabric_operator.chores.outcome import Refused, wait
from epfabric_operator.kube import Kube, Object

log = logging.getLogger(__name__)
PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MANAGER = "epfabric-definitions"


def shipped() -> list[Object]:
    return [definition(kind) for kind in FILES]


def dropped(present: Object | None, wanted: Object) -> list[str]:
    """Versions in which objects may be stored and that `wanted` would no longer have."""
    stored = ((present or {}).get("status") or {}).get("storedVersions") or []
    kept = {version["name"] for version in wanted["spec"]["versions"]}
    return [version for version in stored if version not in kept]


def unready(present: Object | None) -> str | None:
    """Why the API server does not serve the definition; None when it does."""
    if present is None:
        return "it is missing"
    conditions = {c["type"]: c for c in (present.get("status") or {}).get("conditions") or []}
    for kind in ("NamesAccepted", "Established"):
        found = conditions.get(kind)
        if not found or found["status"] != "True":
            return f"{kind} is not True: {(found or {}).get('message') or 'nothing said yet'}"
    return None


def apply(kube: Kube, timeout_s: float) -> None:
    """Apply all or none; wait until they are served. Raises Refused, Unfinished, ApiError."""
    wanted = {crd["metadata"]["name"]: crd for crd in shipped()}
    refusals = []
    for name, crd in wanted.items():
        if lost := dropped(kube.get(f"{PATH}/{name}"), crd):
            has = ", ".join(v["name"] for v in crd["spec"]["versions"])
            refusals.append(
                f"{name}: objects may be stored as {', '.join(lost)}, and this version of EPFabric"
                f" has only {has}: they could not be read any more. Stay with the release that is"
                f" installed, or store all objects anew as {has} and take {', '.join(lost)} out of"
                " the definition's status.storedVersions; then try again"
            )
    if refusals:
        raise Refused("\n".join(refusals))
    for name, crd in wanted.items():
        kube.apply(f"{PATH}/{name}", crd, MANAGER)
        log.info("applied %s", name)
    wait(partial(_missing, kube, list(wanted)), timeout_s, "definitions to be served")


def _missing(kube: Kube, names: list[str]) -> list[str]:
    found = ((name, unready(kube.get(f"{PATH}/{name}"))) for name in names)
    return [f"{name} ({why})" for name, why in found if why]


def delete(kube: Kube, timeout_s: float) -> None:
    """Delete the definitions with all objects; bounded. Raises Unfinished, ApiError."""
    names = [crd["metadata"]["name"] for crd in shipped()]
    for name in names:
        kube.delete(f"{PATH}/{name}")
        log.info("deleted %s", name)

    def left() -> list[str]:
        return [name for name in names if kube.get(f"{PATH}/{name}") is not None]

    wait(left, timeout_s, "definitions to be gone")
