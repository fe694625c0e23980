"""Records of published volumes: written by the CSI driver, read by the agent of the node.

One JSON file per volume in `<state-dir>/records` (0700). A record carries the boot in which it
was written; records of another boot say nothing about mounts of this one.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

VERSION = 1
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
SUFFIX = ".json"


class RecordError(ValueError):
    """A record that cannot be read; the message names the file."""


@dataclass(frozen=True)
class Owner:
    """The controller of a pod."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class Record:
    """What the agent has to know of a pod that opted in; `group` may be empty (no controller)."""

    boot_id: str
    volume_id: str
    namespace: str
    pod: str
    pod_uid: str
    service_account: str
    fabric: str
    group: str
    owner: Owner | None
    directory: str
    target_path: str
    tenant: str = ""
    """By the fabric's selectors when the volume was published; empty for none."""


def boot_id(path: Path = BOOT_ID_FILE) -> str:
    return path.read_text().strip()


def records_dir(state_dir: Path) -> Path:
    return state_dir / "records"


def volumes_dir(state_dir: Path) -> Path:
    return state_dir / "volumes"


def record_path(state_dir: Path, volume_id: str) -> Path:
    return records_dir(state_dir) / (volume_id + SUFFIX)


def encode(record: Record) -> bytes:
    owner = record.owner
    fields = {
        "version": VERSION,
        "bootId": record.boot_id,
        "volumeId": record.volume_id,
        "namespace": record.namespace,
        "pod": record.pod,
        "podUid": record.pod_uid,
        "serviceAccount": record.service_account,
        "fabric": record.fabric,
        "group": record.group,
        "owner": owner
        and {
            "apiVersion": owner.api_version,
            "kind": owner.kind,
            "name": owner.name,
            "uid": owner.uid,
        },
        "directory": record.directory,
        "targetPath": record.target_path,
        "tenant": record.tenant,
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode(data: bytes, source: str) -> Record:
    """`source` names the file in errors."""
    try:
        fields = json.loads(data)
        if fields["version"] != VERSION:
            raise RecordError(f"{source}: version {fields['version']} is not {VERSION}")
        owner = fields["owner"]
        return Record(
            boot_id=str(fields["bootId"]),
            volume_id=str(fields["volumeId"]),
            namespace=str(fields["namespace"]),
            pod=str(fields["pod"]),
            pod_uid=str(fields["podUid"]),
            service_account=str(fields["serviceAccount"]),
            fabric=str(fields["fabric"]),
            group=str(fields["group"]),
            owner=owner
            and Owner(
                api_version=str(owner["apiVersion"]),
                kind=str(owner["kind"]),
                name=str(owner["name"]),
                uid=str(owner["uid"]),
            ),
            directory=str(fields["directory"]),
            target_path=str(fields["targetPath"]),
            tenant=str(fields["tenant"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"{source}: not a record: {error!r}") from error


def write(state_dir: Path, record: Record) -> None:
    """Atomic: a reader, or a crash at any point, sees the old record, the new one or none."""
    folder = records_dir(state_dir)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    temporary = folder / f".{record.volume_id}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(encode(record))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, record_path(state_dir, record.volume_id))
    sync_directory(folder)


def read(state_dir: Path, volume_id: str) -> Record | None:
    path = record_path(state_dir, volume_id)
    try:
        return decode(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None


def read_all(state_dir: Path, boot: str) -> list[Record]:
    """The readable records of this boot, by volume id; what cannot be read is left out."""
    found = []
    for volume_id in volume_ids(state_dir):
        try:
            record = read(state_dir, volume_id)
        except RecordError:
            continue
        if record is not None and record.boot_id == boot and record.volume_id == volume_id:
            found.append(record)
    return found


def volume_ids(state_dir: Path) -> list[str]:
    try:
        names = os.listdir(records_dir(state_dir))
    except FileNotFoundError:
        return []
    return sorted(
        name.removesuffix(SUFFIX)
        for name in names
        if name.endswith(SUFFIX) and not name.startswith(".")
    )


def remove(state_dir: Path, volume_id: str) -> None:
    record_path(state_dir, volume_id).unlink(missing_ok=True)


def sync_directory(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
