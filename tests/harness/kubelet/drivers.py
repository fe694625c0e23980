"""The CSI drivers that registered with one node's kubelet; for its volumes."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from harness import csi_client

log = logging.getLogger("harness.kubelet")

REGISTRY = "/var/lib/kubelet/plugins_registry"


class Drivers:
    """host: the node's folder. `look` is called again and again, as a kubelet watches."""

    def __init__(self, host: Path) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], tuple[str, Path]] = {}
        self._said: dict[str, str] = {}

    def socket(self, driver: str) -> Path:
        """Where a driver listens; CsiError as long as it is not registered."""
        with self._lock:
            for name, endpoint in self._known.values():
                if name == driver:
                    return endpoint
        text = f"driver name {driver} not found in the list of registered CSI drivers"
        raise csi_client.CsiError("UNAVAILABLE", text)

    def look(self) -> None:
        """Registers drivers whose socket is new, forgets those whose socket is gone."""
        found = {
            (path.name, path.stat().st_ino): path
            for path in Path(f"{self._host}{REGISTRY}").glob("*.sock")
            if path.is_socket()
        }
        with self._lock:
            self._known = {key: value for key, value in self._known.items() if key in found}
            new = [(key, path) for key, path in found.items() if key not in self._known]
        for key, path in new:
            try:
                name, endpoint = csi_client.register(path)
            except csi_client.CsiError as error:
                if self._said.get(path.name) != str(error):
                    self._said[path.name] = str(error)
                    log.warning("%s does not register: %s", path, error)
                continue
            with self._lock:
                self._known[key] = (name, Path(f"{self._host}{endpoint}"))
