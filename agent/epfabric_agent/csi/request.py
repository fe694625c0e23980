"""What a kubelet may ask of the CSI driver, decided without touching anything; for the service."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from epfabric_agent.csi.records import Owner

DRIVER = "csi.epfabric.io"
MAX_PATH = 4000

_VOLUME_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_POD = "csi.storage.k8s.io/"


class RequestError(ValueError):
    """A request that can never be served; the message says what is wrong with it."""


@dataclass(frozen=True)
class Publication:
    """A checked request: this pod's volume, to be mounted on `target`."""

    volume_id: str
    target: Path
    namespace: str
    pod: str
    pod_uid: str
    service_account: str
    fabric: str
    group: str
    owner: Owner | None


def publication(
    volume_id: str, target: str, context: Mapping[str, str], kubelet_root: Path
) -> Publication:
    if context.get(_POD + "ephemeral") != "true":
        raise RequestError(
            f"{DRIVER} serves only inline volumes of pods that carry the annotation"
            " epfabric.io/fabric; it has no persistent volumes"
        )
    group = context.get("group", "")
    if group and not _LABEL.fullmatch(group):
        raise RequestError(f"the group {group!r} is not a DNS label of at most 63 characters")
    return Publication(
        volume_id=checked_volume_id(volume_id),
        target=checked_target(target, kubelet_root),
        namespace=_needed(context, _POD + "pod.namespace"),
        pod=_needed(context, _POD + "pod.name"),
        pod_uid=_needed(context, _POD + "pod.uid"),
        service_account=context.get(_POD + "serviceAccount.name", ""),
        fabric=_fabric(context),
        group=group,
        owner=parse_owner(context.get("owner", "")),
    )


def checked_volume_id(volume_id: str) -> str:
    if not _VOLUME_ID.fullmatch(volume_id):
        raise RequestError(
            f"the volume id {volume_id[:140]!r} is not 1 to 128 letters, digits, '.', '_' or '-'"
            " that begin with a letter or digit"
        )
    return volume_id


def checked_target(target: str, kubelet_root: Path) -> Path:
    """`<kubelet root>/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount`, and nothing else."""
    path = Path(target)
    expected = f"{kubelet_root}/pods/<uid>/volumes/kubernetes.io~csi/<volume>/mount"
    refusal = RequestError(f"the target path {target[:200]!r} is not {expected}")
    if len(target) > MAX_PATH or "\0" in target or os.path.normpath(target) != target:
        raise refusal
    try:
        parts = path.relative_to(kubelet_root / "pods").parts
    except ValueError:
        raise refusal from None
    if len(parts) != 5 or (parts[1], parts[2], parts[4]) != (
        "volumes",
        "kubernetes.io~csi",
        "mount",
    ):
        raise refusal
    return path


def parse_owner(text: str) -> Owner | None:
    """`apiVersion kind name uid`, or nothing for a pod without a controller."""
    if not text:
        return None
    parts = text.split(" ")
    if len(parts) != 4 or not all(parts):
        raise RequestError(f"the owner {text[:200]!r} is not 'apiVersion kind name uid'")
    return Owner(*parts)


def _needed(context: Mapping[str, str], key: str) -> str:
    value = context.get(key, "")
    if not value:
        raise RequestError(f"{key} is missing: the CSIDriver object must have podInfoOnMount: true")
    return value


def _fabric(context: Mapping[str, str]) -> str:
    fabric = context.get("fabric", "")
    if not _LABEL.fullmatch(fabric):
        raise RequestError(
            f"the volume names no fabric ({fabric[:80]!r}): do not write this volume by hand,"
            " annotate the pod with epfabric.io/fabric: NAME"
        )
    return fabric
