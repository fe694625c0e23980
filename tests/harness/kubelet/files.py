"""The content of volumes that hold files: configMap, secret, downwardAPI, projected; for volumes.

Pure but for `write`, which replaces each file in one step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.kubelet.plan import Json, PlanError, field

DEFAULT_MODE = 0o644


@dataclass(frozen=True)
class Reader:
    """How content is had: `data(kind, name)` of a configmap or secret, None if there is none;
    `token(source)` of a serviceAccountToken source; `address` of the node.
    """

    data: Callable[[str, str], dict[str, bytes] | None]
    token: Callable[[Json], bytes]
    address: str


@dataclass(frozen=True)
class Content:
    data: bytes
    mode: int


def of_volume(pod: Json, volume: Json, reader: Reader) -> dict[str, Content] | None:
    """Relative path → content; None for a volume of another kind."""
    if "configMap" in volume:
        return of_keys(volume["configMap"], "configmaps", reader, mode_of(volume["configMap"]))
    if "secret" in volume:
        source = {"name": volume["secret"]["secretName"], **volume["secret"]}
        return of_keys(source, "secrets", reader, mode_of(source))
    if "downwardAPI" in volume:
        mode = mode_of(volume["downwardAPI"])
        return of_fields(pod, volume["downwardAPI"].get("items", []), reader, mode)
    if "projected" in volume:
        return of_projected(pod, volume["projected"], reader)
    return None


def mode_of(source: Json) -> int:
    return int(source.get("defaultMode", DEFAULT_MODE))


def of_projected(pod: Json, projected: Json, reader: Reader) -> dict[str, Content]:
    mode = mode_of(projected)
    found: dict[str, Content] = {}
    for source in projected.get("sources", []):
        if "serviceAccountToken" in source:
            token = source["serviceAccountToken"]
            found[safe(token["path"])] = Content(reader.token(token), mode)
        elif "configMap" in source:
            found |= of_keys(source["configMap"], "configmaps", reader, mode)
        elif "secret" in source:
            found |= of_keys(source["secret"], "secrets", reader, mode)
        elif "downwardAPI" in source:
            found |= of_fields(pod, source["downwardAPI"].get("items", []), reader, mode)
        else:
            raise PlanError(f"projected source {sorted(source)} is not known to this kubelet")
    return found


def of_keys(source: Json, kind: str, reader: Reader, mode: int) -> dict[str, Content]:
    data = reader.data(kind, source["name"])
    if data is None:
        if source.get("optional"):
            return {}
        raise PlanError(f"{kind[:-1]} {source['name']!r} not found")
    items = source.get("items")
    if not items:
        return {safe(key): Content(value, mode) for key, value in data.items()}
    found = {}
    for item in items:
        if item["key"] in data:
            found[safe(item["path"])] = Content(data[item["key"]], int(item.get("mode", mode)))
        elif not source.get("optional"):
            raise PlanError(f"{kind[:-1]} {source['name']!r} has no key {item['key']!r}")
    return found


def of_fields(pod: Json, items: list[Json], reader: Reader, mode: int) -> dict[str, Content]:
    found = {}
    for item in items:
        if "fieldRef" not in item:
            raise PlanError("downwardAPI: only fieldRef is known to this kubelet")
        value = field(pod, item["fieldRef"]["fieldPath"], reader.address)
        found[safe(item["path"])] = Content(value.encode(), int(item.get("mode", mode)))
    return found


def safe(path: str) -> str:
    if path.startswith("/") or ".." in Path(path).parts:
        raise PlanError(f"the path {path!r} leaves its volume")
    return path


def write(folder: Path, contents: Mapping[str, Content], group: int | None) -> None:
    """Makes the folder hold exactly `contents`; readers see old or new files, never halves."""
    for path, content in contents.items():
        file = folder / path
        if file.exists() and file.read_bytes() == content.data:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name(f".{file.name}.new")
        fresh.write_bytes(content.data)
        fresh.chmod(content.mode)
        if group is not None:
            os.chown(fresh, 0, group)
            fresh.chmod(content.mode | 0o040)
        fresh.replace(file)
    for file in folder.rglob("*"):
        if file.is_file() and str(file.relative_to(folder)) not in contents:
            file.unlink()
