"""Follows the agent's own EPFabricNode: what the operator wants of this node; for kube.mode."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from epfabric_crds import EPFabricNode, MirrorError
from epfabric_crds.node import EPFabricNodeSpec

from epfabric_agent.kube import paths
from epfabric_agent.kube.api import Api, ApiError

RETRY_S = 1.0
RETRY_MOST_S = 15.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """One state of the spec."""

    uid: str
    generation: int
    spec: EPFabricNodeSpec


def wanted_of(item: object, fabric: str) -> Wanted | None:
    """None where the object is gone, is another fabric's, or is not understood."""
    try:
        node = EPFabricNode.from_dict(item, strict=False)
    except MirrorError as error:
        if item:
            _log.error("the EPFabricNode is not understood: %s", error)
        return None
    if node.spec.fabric != fabric:
        _log.warning("the EPFabricNode is of fabric %s, not %s", node.spec.fabric, fabric)
        return None
    return Wanted(node.metadata.uid or "", node.metadata.generation or 0, node.spec)


class SettingsWatch:
    """A thread of its own, since a watch blocks; it dies with the process."""

    def __init__(
        self, api: Api, node: str, fabric: str, tell: Callable[[Wanted | None], None]
    ) -> None:
        """`tell` is called in the watch's thread, once for each change."""
        self._api = api
        self._node = node
        self._fabric = fabric
        self._tell = tell
        self._stop = threading.Event()
        self._last: Wanted | bool | None = False
        self._thread = threading.Thread(target=self._run, name="settings-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        pause_s = RETRY_S
        while not self._stop.is_set():
            try:
                for kind, item in self._api.watch(paths.NODES, self._node):
                    pause_s = RETRY_S
                    self._see(None if kind == "DELETED" else wanted_of(item, self._fabric))
                    if self._stop.is_set():
                        return
            except ApiError as error:
                _log.warning("cannot watch the EPFabricNode %s: %s", self._node, error)
            except Exception:
                _log.exception("watching the EPFabricNode %s failed", self._node)
            else:
                continue
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_MOST_S)

    def _see(self, wanted: Wanted | None) -> None:
        if wanted != self._last:
            self._last = wanted
            self._tell(wanted)
