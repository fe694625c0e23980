"""Decides what a container of a stored pod runs, as whom, with which environment and mounts; pure.

For the kubelet's containers and volumes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]

NON_ROOT_UID = 65532
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)")
_KEYED = re.compile(r"metadata\.(annotations|labels)\['(.+)'\]")


class PlanError(Exception):
    """The pod cannot run as it is written; `reason` is the waiting reason in its status."""

    def __init__(self, message: str, reason: str = "CreateContainerConfigError") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Ground:
    """What a node gives to every container: names and folders of the harness's making."""

    node: str
    address: str
    images: Mapping[str, Sequence[str]]
    programs: Path
    visible: tuple[Path, ...]
    hidden: tuple[Path, ...]
    examples: Path
    service: tuple[str, int]


@dataclass(frozen=True)
class User:
    uid: int
    gid: int
    groups: tuple[int, ...]
    privileged: bool
    no_new_privileges: bool
    add: tuple[str, ...]
    drop: tuple[str, ...]


def expand(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` of a known name is replaced, `$$` is a dollar, all else stays."""

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        return "$" if name is None else known.get(name, found.group(0))

    return _REFERENCE.sub(value, text)


def field(pod: Json, path: str, address: str) -> str:
    """The value of a fieldRef."""
    metadata, spec = pod["metadata"], pod["spec"]
    if keyed := _KEYED.fullmatch(path):
        return str((metadata.get(keyed.group(1)) or {}).get(keyed.group(2), ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = metadata.get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))
    simple = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec["nodeName"],
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.hostIP": address,
        "status.hostIPs": address,
        "status.podIP": address,
        "status.podIPs": address,
    }
    if path not in simple:
        raise PlanError(f"the field {path!r} is not known to this kubelet")
    return str(simple[path])


def environment(
    pod: Json, container: Json, ground: Ground, lookup: Callable[[str, str], dict[str, str] | None]
) -> dict[str, str]:
    """lookup(kind "configmaps" or "secrets", name) gives the decoded data, or None."""
    host, port = ground.service
    known = {
        "PATH": f"{ground.programs}:{DEFAULT_PATH}",
        "HOME": "/",
        "LANG": "C.UTF-8",
        "HOSTNAME": ground.node if pod["spec"].get("hostNetwork") else pod["metadata"]["name"],
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": str(port),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
    }
    for source in container.get("envFrom", []):
        for key, value in bulk(source, lookup).items():
            known[source.get("prefix", "") + key] = value
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            found = referenced(pod, container, entry["valueFrom"], ground.address, lookup)
            if found is not None:
                known[entry["name"]] = found
        else:
            known[entry["name"]] = expand(entry.get("value", ""), known)
    return known


def bulk(source: Json, lookup: Callable[[str, str], dict[str, str] | None]) -> dict[str, str]:
    kind, key = (
        ("configmaps", "configMapRef") if "configMapRef" in source else ("secrets", "secretRef")
    )
    reference = source[key]
    data = lookup(kind, reference["name"])
    if data is None and not reference.get("optional"):
        raise PlanError(f"envFrom: there is no {kind[:-1]} {reference['name']!r}")
    return data or {}


def referenced(
    pod: Json,
    container: Json,
    source: Json,
    address: str,
    lookup: Callable[[str, str], dict[str, str] | None],
) -> str | None:
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"], address)
    for key, kind in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if key in source:
            reference = source[key]
            value = (lookup(kind, reference["name"]) or {}).get(reference["key"])
            if value is None and not reference.get("optional"):
                name = f"{kind[:-1]} {reference['name']!r}"
                raise PlanError(f"env: there is no key {reference['key']!r} in the {name}")
            return value
    if "resourceFieldRef" in source:
        part, _, name = source["resourceFieldRef"]["resource"].partition(".")
        return str(container.get("resources", {}).get(part, {}).get(name, "0"))
    raise PlanError(f"env: no value can be taken from {sorted(source)}")


def arguments(container: Json, known: Mapping[str, str], ground: Ground) -> list[str]:
    """The command line; without `command` the image's entry point stands before `args`."""
    image = image_name(container["image"])
    words = list(container.get("command") or ground.images.get(image, ()))
    if not words:
        raise PlanError(
            f"the image {image!r} has no entry point here and the container no command:"
            " add it to the kubelet's `images`",
            "ErrImageNeverPull",
        )
    return [expand(word, known) for word in [*words, *container.get("args", [])]]


def image_name(reference: str) -> str:
    """Without registry, tag and digest."""
    return reference.rpartition("/")[2].partition("@")[0].partition(":")[0]


def user(pod: Json, container: Json) -> User:
    shared = pod["spec"].get("securityContext") or {}
    own = container.get("securityContext") or {}

    def setting(name: str, default: Any) -> Any:
        return own.get(name, shared.get(name, default))

    uid = setting("runAsUser", NON_ROOT_UID if setting("runAsNonRoot", False) else 0)
    if uid == 0 and setting("runAsNonRoot", False):
        raise PlanError("the container must not run as root (runAsNonRoot), but its runAsUser is 0")
    gid = setting("runAsGroup", uid if uid == NON_ROOT_UID else 0)
    groups = set(shared.get("supplementalGroups", []))
    if "fsGroup" in shared:
        groups.add(shared["fsGroup"])
    capabilities = own.get("capabilities") or {}
    return User(
        uid=uid,
        gid=gid,
        groups=tuple(sorted(groups)),
        privileged=bool(own.get("privileged", False)),
        no_new_privileges=own.get("allowPrivilegeEscalation") is False,
        add=tuple(capabilities.get("add", ())),
        drop=tuple(capabilities.get("drop", ())),
    )


def mounts(container: Json, sources: Mapping[str, Path], examples: Path) -> list[Json]:
    """What stands where in the container, outer folders first; see the launcher's spec."""
    made = [mount_of(examples, "/opt/epfabric/examples", readonly=True)]
    for entry in container.get("volumeMounts", []):
        source = sources[entry["name"]]
        if subpath := entry.get("subPath"):
            source = source / subpath
            if ".." in Path(subpath).parts:
                raise PlanError(f"subPath {subpath!r} leaves its volume")
        made.append(
            mount_of(
                source,
                entry["mountPath"],
                readonly=entry.get("readOnly", False),
                propagation=entry.get("mountPropagation", "None"),
            )
        )
    return sorted(made, key=lambda entry: len(Path(entry["target"]).parts))


def mount_of(source: Path, target: str, *, readonly: bool, propagation: str = "None") -> Json:
    return {
        "source": str(source),
        "target": target,
        "readonly": readonly,
        "propagation": propagation,
    }


def launch(
    pod: Json,
    container: Json,
    ground: Ground,
    sources: Mapping[str, Path],
    lookup: Callable[[str, str], dict[str, str] | None],
) -> Json:
    """The launcher's spec but for `new_root` and `log`."""
    known = environment(pod, container, ground, lookup)
    identity = user(pod, container)
    return {
        "argv": arguments(container, known, ground),
        "env": known,
        "directory": container.get("workingDir") or "/",
        "user": vars(identity)
        | {
            "groups": list(identity.groups),
            "add": list(identity.add),
            "drop": list(identity.drop),
        },
        "privileged": identity.privileged,
        "read_only_root": bool(
            (container.get("securityContext") or {}).get("readOnlyRootFilesystem", False)
        ),
        "visible": [str(path) for path in ground.visible],
        "hidden": [str(path) for path in ground.hidden],
        "mounts": mounts(container, sources, ground.examples),
    }
