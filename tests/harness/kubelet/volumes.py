"""The volumes of one pod on its node's folder: made, refreshed, removed; for the kubelet's pods."""

from __future__ import annotations

import base64
import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness import csi_client
from harness.kubelet import files
from harness.kubelet.api import Api, ApiError, Json
from harness.kubelet.drivers import Drivers
from harness.kubelet.launch import mounts
from harness.kubelet.plan import PlanError

log = logging.getLogger("harness.kubelet")

# These are the machine's, the same for all its nodes.
MACHINE_PATHS = ("/dev", "/sys", "/proc", "/lib/modules")
KUBELET_ROOT = "/var/lib/kubelet"
REFRESH_AT = 0.8  # of a token's life, as kubelets do


class VolumeError(Exception):
    """A volume is not ready; asking again later is right."""


@dataclass
class Token:
    value: bytes
    renew_at: float


class Volumes:
    """host: the node's folder, a shared mount that stands for its file system."""

    def __init__(self, api: Api, host: Path, drivers: Drivers, address: str, pod: Json) -> None:
        self._api = api
        self._host = host
        self._drivers = drivers
        self._pod = pod
        self._namespace: str = pod["metadata"]["namespace"]
        self._uid: str = pod["metadata"]["uid"]
        self._tokens: dict[str, Token] = {}
        self._reader = files.Reader(self.data, self._token, address)
        self._lock = threading.Lock()
        self._published: set[str] = set()

    def prepare(self) -> dict[str, Path]:
        """Volume name → source on this machine; VolumeError when one is not to be had yet."""
        with self._lock:
            return {v["name"]: self._prepare(v) for v in self._pod["spec"].get("volumes", [])}

    def refresh(self) -> None:
        """Writes changed content and fresh tokens into the volumes that hold files."""
        with self._lock:
            for volume in self._pod["spec"].get("volumes", []):
                if files_kind(volume):
                    self._write(volume)

    def remove(self) -> None:
        """Unpublishes and removes all; VolumeError when a driver did not let go: repeat it."""
        with self._lock:
            for volume in self._pod["spec"].get("volumes", []):
                if "csi" in volume:
                    self._unpublish(volume)
            folder = Path(str(self._host) + f"{KUBELET_ROOT}/pods/{self._uid}")
            for volume in self._pod["spec"].get("volumes", []):
                if volume.get("emptyDir", {}).get("medium") == "Memory":
                    mounts.unmount(str(self._host) + self._path(volume))
            if below := mounts.mounted_below(str(folder)):
                raise VolumeError(f"still mounted: {', '.join(below)}")
            if folder.exists():
                shutil.rmtree(folder)

    def data(self, kind: str, name: str) -> dict[str, bytes] | None:
        """The decoded data of a ConfigMap or Secret of the pod's namespace."""
        try:
            found = self._api.get(f"/api/v1/namespaces/{self._namespace}/{kind}/{name}")
        except ApiError as error:
            if error.code == 404:
                return None
            raise VolumeError(str(error)) from error
        plain, coded = found.get("data") or {}, found.get("binaryData") or {}
        if kind == "secrets":
            plain, coded = {}, plain
        return {key: value.encode() for key, value in plain.items()} | {
            key: base64.b64decode(value) for key, value in coded.items()
        }

    def text(self, kind: str, name: str) -> dict[str, str] | None:
        found = self.data(kind, name)
        return None if found is None else {key: value.decode() for key, value in found.items()}

    def _path(self, volume: Json) -> str:
        """The volume's folder as the node sees it."""
        kinds = {"emptyDir": "empty-dir", "csi": "csi"}
        kind = next((word for key, word in kinds.items() if key in volume), "projected")
        base = f"{KUBELET_ROOT}/pods/{self._uid}/volumes/kubernetes.io~{kind}/{volume['name']}"
        return f"{base}/mount" if kind == "csi" else base

    def _prepare(self, volume: Json) -> Path:
        folder = Path(str(self._host) + self._path(volume))
        if "hostPath" in volume:
            return host_path(self._host, volume["hostPath"])
        if "csi" in volume:
            self._publish(volume)
            return folder
        if "emptyDir" in volume:
            self._make_empty(volume, folder)
        elif files_kind(volume):
            folder.mkdir(parents=True, exist_ok=True)
            self._write(volume)
        else:
            kinds = sorted(set(volume) - {"name"})
            raise VolumeError(f"volume {volume['name']!r}: {kinds} is not known to this kubelet")
        return folder

    def _make_empty(self, volume: Json, folder: Path) -> None:
        if folder.exists():
            return
        folder.mkdir(parents=True)
        if volume["emptyDir"].get("medium") == "Memory":
            mounts.mount("tmpfs", str(folder), "tmpfs", mounts.MS_NODEV | mounts.MS_NOSUID)
        folder.chmod(0o777)
        if (group := self._group()) is not None:
            os.chown(folder, 0, group)
            folder.chmod(0o2777)

    def _group(self) -> int | None:
        found = (self._pod["spec"].get("securityContext") or {}).get("fsGroup")
        return None if found is None else int(found)

    def _write(self, volume: Json) -> None:
        try:
            contents = files.of_volume(self._pod, volume, self._reader)
        except PlanError as error:
            raise VolumeError(f"volume {volume['name']!r}: {error}") from error
        folder = Path(str(self._host) + self._path(volume))
        files.write(folder, contents or {}, self._group())

    def _token(self, source: Json) -> bytes:
        key = source["path"]
        held = self._tokens.get(key)
        if held is not None and time.time() < held.renew_at:
            return held.value
        account = self._pod["spec"].get("serviceAccountName", "default")
        request: Json = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [source["audience"]] if source.get("audience") else [],
                "expirationSeconds": source.get("expirationSeconds", 3600),
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": self._pod["metadata"]["name"],
                    "uid": self._uid,
                },
            },
        }
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        try:
            status = self._api.post(path, request)["status"]
        except ApiError as error:
            if held is not None:
                log.warning("the token of %s was not renewed: %s", account, error)
                return held.value
            raise VolumeError(f"token of the service account {account!r}: {error}") from error
        end = datetime.strptime(status["expirationTimestamp"], "%Y-%m-%dT%H:%M:%SZ")
        now = time.time()
        life_s = end.replace(tzinfo=UTC).timestamp() - now
        fresh = Token(status["token"].encode(), now + REFRESH_AT * life_s)
        self._tokens[key] = fresh
        return fresh.value

    def _publish(self, volume: Json) -> None:
        target = self._path(volume)
        source = volume["csi"]
        Path(str(self._host) + target).parent.mkdir(parents=True, exist_ok=True)
        context = csi_client.volume_context(source.get("volumeAttributes") or {}, self._pod)
        try:
            driver = self._drivers.socket(source["driver"])
            self._published.add(volume["name"])
            csi_client.publish(
                driver,
                csi_client.volume_id(self._uid, volume["name"]),
                target,
                context,
                readonly=bool(source.get("readOnly", False)),
            )
        except csi_client.CsiError as error:
            raise VolumeError(f"volume {volume['name']!r}: {error}") from error

    def _unpublish(self, volume: Json) -> None:
        """A volume that was never asked for is left alone, as by kubelets."""
        if volume["name"] not in self._published:
            return
        identifier = csi_client.volume_id(self._uid, volume["name"])
        try:
            driver = self._drivers.socket(volume["csi"]["driver"])
            csi_client.unpublish(driver, identifier, self._path(volume))
        except csi_client.CsiError as error:
            raise VolumeError(f"volume {volume['name']!r} stays: {error}") from error
        self._published.discard(volume["name"])


def files_kind(volume: Mapping[str, object]) -> bool:
    return any(key in volume for key in ("configMap", "secret", "downwardAPI", "projected"))


def host_path(host: Path, source: Json) -> Path:
    """The node's own file or folder, made as its `type` says."""
    wanted, kind = source["path"], source.get("type") or ""
    if any(wanted == top or wanted.startswith(f"{top}/") for top in MACHINE_PATHS):
        found = Path(wanted)
        if found.exists():
            return found
    found = Path(str(host) + os.path.normpath(wanted))
    if kind in ("DirectoryOrCreate", ""):
        found.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        found.touch()
    checks = {"Directory": Path.is_dir, "File": Path.is_file, "Socket": Path.is_socket}
    check = checks.get(kind, Path.exists)
    if not check(found):
        raise VolumeError(f"hostPath {wanted}: there is no {kind or 'file'} on the node")
    return found
