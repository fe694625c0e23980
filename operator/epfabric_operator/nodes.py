"""What the operator follows of Nodes and EPFabricNodes; started by leading.py."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

from epfabric_crds.names import CORDON_ANNOTATION, FABRIC_LABEL

from epfabric_operator import paths
from epfabric_operator.kube import Kube, Object
from epfabric_operator.watching import MetadataWatch
from epfabric_operator.worklist import EVERYTHING, Work, Worklist
from epfabric_operator.world import NodeMeta

SETTLE_S = 1.0  # each look reads all of them


class NodeCache:
    """`changed` is called from the watching thread when a name, uid, label or cordon changed."""

    def __init__(self, kube: Kube, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._nodes: dict[str, NodeMeta] = {}
        self.synced = threading.Event()
        self.run = MetadataWatch(kube, paths.NODES, self._replace, self._take).run

    def snapshot(self) -> dict[str, NodeMeta]:
        with self._lock:
            return dict(self._nodes)

    def _replace(self, items: Iterator[Object]) -> None:
        nodes = {meta.name: meta for meta in map(parse, items)}
        with self._lock:
            same = nodes == self._nodes
            self._nodes = nodes
        if not same or not self.synced.is_set():
            self.synced.set()
            self._changed()

    def _take(self, kind: str, item: Object) -> None:
        meta = parse(item)
        with self._lock:
            before = self._nodes.get(meta.name)
            if kind == "DELETED":
                self._nodes.pop(meta.name, None)
                changed = before is not None
            else:
                self._nodes[meta.name] = meta
                changed = before != meta
        if changed:
            self._changed()


def epnode_watch(kube: Kube, worklist: Worklist) -> MetadataWatch:
    """A changed EPFabricNode, its status included, makes its fabric worth a look."""

    def listed(items: Iterator[Object]) -> None:
        for _ in items:
            pass
        worklist.add(EVERYTHING)

    def seen(_: str, item: Object) -> None:
        if fabric := (item["metadata"].get("labels") or {}).get(FABRIC_LABEL):
            worklist.add(Work("fabric", fabric), after_s=SETTLE_S)

    return MetadataWatch(kube, paths.EPNODES, listed, seen)


def parse(item: Object) -> NodeMeta:
    meta = item["metadata"]
    # The same few texts on thousands of nodes.
    labels = {sys.intern(k): sys.intern(v) for k, v in (meta.get("labels") or {}).items()}
    cordon = (meta.get("annotations") or {}).get(CORDON_ANNOTATION)
    return NodeMeta(meta["name"], meta["uid"], labels, cordon, meta["resourceVersion"])
