"""What the operator follows of Nodes: their metadata; started by leading.py."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

from epfabric_crds.names import CORDON_ANNOTATION

from epfabric_operator import paths
from epfabric_operator.kube import Kube, Object
from epfabric_operator.watching import Watch, newer
from epfabric_operator.world import NodeMeta


class NodeCache:
    """`changed` is called from the watching thread when a name, uid, label or cordon changed."""

    def __init__(self, kube: Kube, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._nodes: dict[str, NodeMeta] = {}
        self.synced = threading.Event()
        self.run = Watch(kube, paths.NODES, self._replace, self._take).run

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

    def latest(self, seen: NodeMeta) -> NodeMeta:
        """The node as it is now, if it differs from `seen` in nothing but its version."""
        with self._lock:
            now = self._nodes.get(seen.name)
        return now if now == seen and now is not None else seen

    def wrote(self, item: Object) -> None:
        """A write of ours was answered with this metadata; its event may come much later."""
        meta = parse(item)
        with self._lock:
            before = self._nodes.get(meta.name)
            known = before is not None and newer(meta.version, before.version)
            if known:
                self._nodes[meta.name] = meta
        if known and before != meta:
            self._changed()  # its event will say nothing new, and another fabric may wait for it

    def _take(self, kind: str, item: Object) -> None:
        meta = parse(item)
        with self._lock:
            before = self._nodes.get(meta.name)
            if before and newer(before.version, meta.version):
                return
            if kind == "DELETED":
                self._nodes.pop(meta.name, None)
                changed = before is not None
            else:
                self._nodes[meta.name] = meta
                changed = before != meta
        if changed:
            self._changed()


def parse(item: Object) -> NodeMeta:
    meta = item["metadata"]
    # The same few texts on thousands of nodes.
    labels = {sys.intern(k): sys.intern(v) for k, v in (meta.get("labels") or {}).items()}
    cordon = (meta.get("annotations") or {}).get(CORDON_ANNOTATION)
    return NodeMeta(meta["name"], meta["uid"], labels, cordon, meta["resourceVersion"])
