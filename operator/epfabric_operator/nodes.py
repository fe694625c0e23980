"""The cluster's Nodes, metadata only, listed in pages and watched; started by main.py."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from epfabric_operator import paths
from epfabric_operator.kube import METADATA, METADATA_LIST, ApiError, Kube
from epfabric_operator.world import NodeMeta

log = logging.getLogger(__name__)
RETRY_S = 2.0


class NodeCache:
    """`changed` is called from the watching thread whenever a name, uid or label changed."""

    def __init__(self, kube: Kube, changed: Callable[[], None]) -> None:
        self._kube = kube
        self._changed = changed
        self._lock = threading.Lock()
        self._nodes: dict[str, NodeMeta] = {}
        self.synced = threading.Event()

    def snapshot(self) -> dict[str, NodeMeta]:
        with self._lock:
            return dict(self._nodes)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                version = self._list()
                while not stop.is_set():
                    version = self._follow(version, stop)
            except ApiError as error:
                # 410: the version is too old to go on from, which a new list cures.
                if error.status != 410:
                    log.warning("nodes: %s; trying again", error)
                    stop.wait(RETRY_S)

    def _list(self) -> str:
        items, version = self._kube.pages(paths.NODES, accept=METADATA_LIST)
        nodes = {meta.name: meta for meta in map(parse, items)}
        with self._lock:
            same = nodes == self._nodes
            self._nodes = nodes
        if not same or not self.synced.is_set():
            self.synced.set()
            self._changed()
        return version

    def _follow(self, version: str, stop: threading.Event) -> str:
        for event in self._kube.watch(paths.NODES, version, accept=METADATA):
            if stop.is_set():
                break
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK" and self._take(event):
                self._changed()
        return version

    def _take(self, event: dict[str, Any]) -> bool:
        meta = parse(event["object"])
        with self._lock:
            before = self._nodes.get(meta.name)
            if event["type"] == "DELETED":
                self._nodes.pop(meta.name, None)
                return before is not None
            self._nodes[meta.name] = meta
            return before != meta


def parse(item: dict[str, Any]) -> NodeMeta:
    meta = item["metadata"]
    labels = meta.get("labels") or {}
    return NodeMeta(meta["name"], meta["uid"], labels, meta["resourceVersion"])
