"""Follows all objects of one kind; threads of leading.py, for nodes.py and epnodes.py.

Listed in small pages and let go one by one, so that memory does not grow with what kubelets and
agents write: half of the metadata of a node is `managedFields`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from epfabric_operator.kube import JSON, METADATA, METADATA_LIST, ApiError, Kube, Object

log = logging.getLogger(__name__)
RETRY_S = 2.0
PAGE = 100


class Watch:
    """Both callbacks run in the watching thread.

    `listed` takes all objects there are, each time that a new list was needed; `seen` one event.
    """

    def __init__(
        self,
        kube: Kube,
        path: str,
        listed: Callable[[Iterator[Object]], None],
        seen: Callable[[str, Object], None],
        whole: bool = False,
    ) -> None:
        """Of the objects' metadata alone, unless they are wanted `whole`."""
        self._kube = kube
        self._path = path
        self._listed = listed
        self._seen = seen
        self._accept, self._accept_list = (JSON, JSON) if whole else (METADATA, METADATA_LIST)
        self.version = ""
        """resourceVersion up to which everything was given to the callbacks, or is being given."""

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._listed(self._list())
                while not stop.is_set():
                    self._follow(stop)
            except ApiError as error:
                # 410: the version is too old to go on from, which a new list cures.
                if error.status != 410:
                    log.warning("%s: %s; trying again", self._path, error)
                    stop.wait(RETRY_S)

    def _list(self) -> Iterator[Object]:
        for page in self._kube.paged(self._path, accept=self._accept_list, size=PAGE):
            self.version = page["metadata"]["resourceVersion"]
            yield from page.get("items") or ()

    def _follow(self, stop: threading.Event) -> None:
        for event in self._kube.watch(self._path, self.version, accept=self._accept):
            if stop.is_set():
                return
            self.version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                self._seen(event["type"], event["object"])


def newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is of a later write; both are of objects of one kind."""
    return int(version) > int(than)
