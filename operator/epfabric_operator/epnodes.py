"""What the operator follows of EPFabricNodes; started by leading.py.

Agents write them all the time, and each change is a reason to look at the fabric: read one by one
as they change, thousands cost a look nothing.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from epfabric_crds import EPFabricNode, MirrorError, names
from epfabric_crds.node import EPFabricNodeSpec

from epfabric_operator import paths
from epfabric_operator.kube import Kube, Object
from epfabric_operator.watching import Watch, newer

log = logging.getLogger(__name__)
MOST_SPECS = 64


class EPNodeCache:
    """`changed` is called with the fabric's name, None for all, when one is not as we knew it."""

    def __init__(self, kube: Kube, changed: Callable[[str | None], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._known: dict[str, EPFabricNode] = {}
        # Thousands of nodes are told the same: what is equal in their specs is kept once.
        self._specs: dict[str, EPFabricNodeSpec] = {}
        self.synced = threading.Event()
        self._watch = Watch(kube, paths.EPNODES, self._replace, self._take, whole=True)
        self.run = self._watch.run

    def snapshot(self) -> dict[str, EPFabricNode]:
        """By name."""
        with self._lock:
            return dict(self._known)

    def wrote(self, item: Object) -> None:
        """A write of ours was answered with this object; its event may come much later."""
        self._keep(item, ours=True)

    def _replace(self, items: Iterator[Object]) -> None:
        listed = {}
        for item in items:
            name = item["metadata"]["name"]
            listed[name] = self._parse(item, self._known.get(name))
        with self._lock:
            # What we wrote while the list was read is newer.
            for name, known in self._known.items():
                if name in listed and newer(_version(known), _version(listed[name])):
                    listed[name] = known
            self._known = listed
        self.synced.set()
        self._changed(None)

    def _take(self, kind: str, item: Object) -> None:
        if kind != "DELETED":
            self._keep(item)
            return
        meta = item["metadata"]
        with self._lock:
            known = self._known.get(meta["name"])
            if known is None or known.metadata.uid != meta["uid"]:
                return
            del self._known[meta["name"]]
        self._changed(known.spec.fabric)

    def _keep(self, item: Object, ours: bool = False) -> None:
        meta = item["metadata"]
        with self._lock:
            known = self._known.get(meta["name"])
            # The watch may have told already that what we wrote is gone.
            seen = _version(known) if known else self._watch.version if ours else "0"
            if not newer(meta["resourceVersion"], seen):
                return
            made = self._known[meta["name"]] = self._parse(item, known)
        if known and known.spec.fabric != made.spec.fabric:
            self._changed(known.spec.fabric)
        if not ours or known is None:
            self._changed(made.spec.fabric)

    def _parse(self, item: Object, before: EPFabricNode | None) -> EPFabricNode:
        meta = item["metadata"]
        if before and _version(before) == meta["resourceVersion"]:
            return before
        meta.pop("managedFields", None)
        node = _epnode(item)
        shared = {k: v for k, v in item["spec"].items() if k not in ("nodeUid", "cordon")}
        if len(self._specs) > MOST_SPECS:
            self._specs = {}
        spec = self._specs.setdefault(json.dumps(shared, sort_keys=True), node.spec)
        own = node.spec
        return replace(node, spec=replace(spec, node_uid=own.node_uid, cordon=own.cordon))


def _version(epnode: EPFabricNode) -> str:
    return epnode.metadata.resource_version or "0"


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
