"""Keeps the node's ResourceSlice as its rails are; for slots.main.

A kubelet removes the slices of a driver that was away, and a server without consumable capacity
drops those fields silently: what the server gives back decides, and it is looked at again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

from epfabric_crds import names

from epfabric_agent.kube.api import Api
from epfabric_agent.slots.rails import Rail, device

MAX_DEVICES = 128
MANAGER = "epfabric-slots"
_DIGEST = "epfabric.io/devices"
_SLICES = "/apis/resource.k8s.io/v1/resourceslices"
_log = logging.getLogger(__name__)


def slice_of(
    node: str, uid: str, rails: tuple[Rail, ...], multiple: bool, generation: int
) -> dict[str, Any]:
    """A whole ResourceSlice. `uid` of the Node, whose end it shares."""
    devices = [made for rail in rails for made in device(rail, multiple)][:MAX_DEVICES]
    digest = hashlib.sha256(json.dumps(devices, sort_keys=True).encode()).hexdigest()[:32]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "name": name_of(node),
            "annotations": {_DIGEST: digest},
            "ownerReferences": [owner],
        },
        "spec": {
            "driver": names.DRA_DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def name_of(node: str) -> str:
    return f"{node}.{names.DRA_DRIVER}"


class Slices:
    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self._path = f"{_SLICES}/{name_of(node)}"
        self._multiple = True

    def keep(self, rails: tuple[Rail, ...]) -> None:
        """Brings the slice to these rails; without any it goes. Raises ApiError."""
        present = self._api.get(self._path)
        if not rails:
            if present is not None:
                self._api.delete(self._path)
            return
        generation = 1
        if present is not None:
            generation = int(present["spec"]["pool"]["generation"])
            wanted = slice_of(self._node, "", rails, self._multiple, generation)
            if _digest(present) == _digest(wanted):
                return
            generation += 1
        node = self._api.get(f"/api/v1/nodes/{self._node}")
        uid = str((node or {})["metadata"]["uid"])
        wanted = slice_of(self._node, uid, rails, self._multiple, generation)
        stored = self._api.apply(self._path, wanted, MANAGER)
        if self._multiple and not _shares(stored):
            _log.info("the API server knows no shared devices: each slot is a device of its own")
            self._multiple = False
            wanted = slice_of(self._node, uid, rails, False, generation + 1)
            self._api.apply(self._path, wanted, MANAGER)
        _log.info("published %d device(s)", len(wanted["spec"]["devices"]))


def _digest(body: dict[str, Any]) -> str:
    return str((body["metadata"].get("annotations") or {}).get(_DIGEST))


def _shares(stored: dict[str, Any]) -> bool:
    devices = stored["spec"].get("devices") or ()
    return all(found.get("allowMultipleAllocations") for found in devices)
