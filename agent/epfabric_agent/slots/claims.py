"""Prepares and unprepares the claims of pods on this node, any number of times; for slots.dra.

What was prepared lies in `claims/UID.json` of the state folder, with the boot it was done in, and
as a CDI file for the container runtime, which a reboot may take away. Both are written anew when
either is missing or of another boot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epfabric_crds import names

from epfabric_agent import durable
from epfabric_agent.slots.rails import environment

CDI_KIND = "epfabric.io/slot"
CDI_VERSION = "0.5.0"
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_RAIL = re.compile(r"rail-(\d+)(-slot-\d+)?")
_NO_CDI = re.compile(r"[^A-Za-z0-9_.-]")


class ClaimError(Exception):
    """A claim that cannot be prepared; the kubelet shows the message and tries again."""


@dataclass(frozen=True)
class Claim:
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Prepared:
    """One device; `cdi` is what the runtime gives to containers that use its request."""

    request: str
    pool: str
    device: str
    cdi: str
    share: str = ""


class Claims:
    """`read` gets a ResourceClaim by namespace and name, or None; see kube.api.Api.get."""

    def __init__(
        self,
        state_dir: Path,
        cdi_dir: Path,
        node: str,
        boot_id: str,
        read: Callable[[str, str], dict[str, Any] | None],
    ) -> None:
        self._folder = state_dir / "claims"
        self._cdi_dir = cdi_dir
        self._node = node
        self._boot_id = boot_id
        self._read = read

    def prepare(self, claim: Claim) -> list[Prepared]:
        """Raises ClaimError, OSError, and what `read` raises."""
        uid = _checked(claim.uid)
        known = self._known(uid)
        if known is not None and self._cdi(uid).exists():
            return known
        devices = self._allocated(claim)
        self._cdi_dir.mkdir(parents=True, exist_ok=True)
        durable.write(self._cdi(uid), json.dumps(_cdi_file(uid, devices)).encode())
        self._cdi(uid).chmod(0o644)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        body = {"bootId": self._boot_id, "devices": [vars(found) for found in devices]}
        durable.write(self._record(uid), json.dumps(body).encode())
        return devices

    def unprepare(self, claim: Claim) -> None:
        """Also where it was never prepared. Raises ClaimError, OSError."""
        uid = _checked(claim.uid)
        self._cdi(uid).unlink(missing_ok=True)
        self._record(uid).unlink(missing_ok=True)

    def _known(self, uid: str) -> list[Prepared] | None:
        try:
            body = json.loads(self._record(uid).read_bytes())
            if body["bootId"] != self._boot_id:
                return None
            return [Prepared(**found) for found in body["devices"]]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def _allocated(self, claim: Claim) -> list[Prepared]:
        found = self._read(claim.namespace, claim.name)
        if found is None or found["metadata"]["uid"] != claim.uid:
            raise ClaimError(f"the claim {claim.namespace}/{claim.name} is gone or another one")
        allocation = (found.get("status") or {}).get("allocation")
        if not allocation:
            raise ClaimError(f"the claim {claim.namespace}/{claim.name} is not allocated")
        results = (allocation.get("devices") or {}).get("results") or ()
        devices = [
            Prepared(
                request=str(result["request"]),
                pool=str(result["pool"]),
                device=str(result["device"]),
                cdi=f"{CDI_KIND}={_cdi_name(claim.uid, str(result['request']))}",
                share=str(result.get("shareID") or ""),
            )
            for result in results
            if result["driver"] == names.DRA_DRIVER and result["pool"] == self._node
        ]
        if not devices:
            raise ClaimError(f"the claim {claim.namespace}/{claim.name} has no slot of this node")
        return devices

    def _record(self, uid: str) -> Path:
        return self._folder / f"{uid}.json"

    def _cdi(self, uid: str) -> Path:
        return self._cdi_dir / f"epfabric.io-{uid}.json"


def _checked(uid: str) -> str:
    if not _UID.fullmatch(uid):
        raise ClaimError(f"{uid!r} is no uid")
    return uid


def _cdi_name(uid: str, request: str) -> str:
    return f"{uid}_{_NO_CDI.sub('-', request)}"


def _cdi_file(uid: str, devices: list[Prepared]) -> dict[str, Any]:
    """A device of CDI for each request: containers see the rails of the requests that they use."""
    rails: dict[str, set[int]] = {}
    for found in devices:
        match = _RAIL.fullmatch(found.device)
        rails.setdefault(found.request, set()).update({int(match[1])} if match else ())
    return {
        "cdiVersion": CDI_VERSION,
        "kind": CDI_KIND,
        "devices": [
            {
                "name": _cdi_name(uid, request),
                "containerEdits": {"env": [f"{k}={v}" for k, v in environment(numbers).items()]},
            }
            for request, numbers in rails.items()
        ],
    }
