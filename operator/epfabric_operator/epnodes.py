"""EPFabricNodes as the planner takes them, read anew only where they changed; for observe.py."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import replace

from epfabric_crds import EPFabricNode, MirrorError, names
from epfabric_crds.node import EPFabricNodeSpec

from epfabric_operator.kube import Object

log = logging.getLogger(__name__)
MOST_SPECS = 64


class EPNodeReader:
    """Thousands of nodes are told the same: what is equal in their specs is kept once."""

    def __init__(self) -> None:
        self._known: dict[str, EPFabricNode] = {}
        self._specs: dict[str, EPFabricNodeSpec] = {}

    def read(self, items: Iterable[Object]) -> dict[str, EPFabricNode]:
        """By name."""
        known = {item["metadata"]["name"]: self._one(item) for item in items}
        self._known = known
        if len(self._specs) > MOST_SPECS:
            self._specs = {}
        return dict(known)

    def _one(self, item: Object) -> EPFabricNode:
        meta = item["metadata"]
        before = self._known.get(meta["name"])
        if before and (before.metadata.uid, before.metadata.resource_version) == (
            meta["uid"],
            meta["resourceVersion"],
        ):
            return before
        meta.pop("managedFields", None)
        node = _epnode(item)
        shared = {k: v for k, v in item["spec"].items() if k not in ("nodeUid", "cordon")}
        spec = self._specs.setdefault(json.dumps(shared, sort_keys=True), node.spec)
        own = node.spec
        return replace(node, spec=replace(spec, node_uid=own.node_uid, cordon=own.cordon))


def _epnode(item: Object) -> EPFabricNode:
    item |= {"apiVersion": names.API_VERSION, "kind": "EPFabricNode"}
    try:
        return EPFabricNode.from_dict(item, strict=False)
    except MirrorError as error:
        # The agent may be newer; what counts here is whose node it is.
        log.warning("epfabricnode/%s: its status is not read: %s", item["metadata"]["name"], error)
        spec = {k: item["spec"][k] for k in ("fabric", "nodeUid")}
        bare = {**item, "spec": spec, "status": {}}
        return EPFabricNode.from_dict(bare, strict=False)
