"""Runs a built image with runc, without a registry or a daemon; for the tests of images.

Its layers are unpacked into buildah's store in the cache and mounted read-only, as in a pod.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.build import cache, locked
from harness.images.buildah import output
from harness.images.store import Image, new_container, store
from harness.process import Process, Processes


@dataclass
class Container:
    """What to run of an image: `args` follow its entry point, or `command` takes its place."""

    args: Sequence[str] = ()
    command: Sequence[str] = ()
    binds: Mapping[Path, str] = field(default_factory=dict)  # folder here → path there
    environment: Mapping[str, str] = field(default_factory=dict)
    capabilities: Sequence[str] = ()
    network: Path | None = None  # a network namespace; None: one of its own, without links


@dataclass(frozen=True)
class Unpacked:
    """An image's root folder and its configuration (of the OCI image specification)."""

    root: Path
    configuration: Mapping[str, Any]


@contextmanager
def unpacked(image: Image) -> Iterator[Unpacked]:
    """The image's root folder, writable and of this caller alone; gone afterwards."""
    with locked(cache() / "images" / "store.lock", "another build of images"), store() as buildah:
        made = new_container(buildah, f"oci-archive:{image.archive}")
        root = Path(buildah("mount", made))
        told = json.loads(buildah("inspect", "--type", "container", made))
    try:
        yield Unpacked(root, told["OCIv1"]["config"])
    finally:
        buildah("umount", made)
        buildah("rm", made)


def start(
    processes: Processes, folder: Path, image: Unpacked, wanted: Container, name: str
) -> Process:
    """Starts the container; its output is the process' log."""
    bundle = folder / f"bundle-{name}"
    bundle.mkdir(parents=True)
    (bundle / "config.json").write_text(json.dumps(specification(bundle, image, wanted)))
    # Unique on the machine, where others may run containers too.
    identity = f"epfabric-{name}-{uuid.uuid4().hex[:8]}"
    return processes.start(
        name,
        ["runc", "--root", str(folder / "runc"), "run", "--bundle", str(bundle), identity],
    )


def specification(bundle: Path, image: Unpacked, wanted: Container) -> dict[str, Any]:
    """runc's own default, with the image's user, entry point and environment in it."""
    output(["runc", "spec", "--bundle", str(bundle)])
    spec: dict[str, Any] = json.loads((bundle / "config.json").read_text())
    given = image.configuration
    user, _, group = str(given.get("User") or "0:0").partition(":")
    command = list(wanted.command) or [*given.get("Entrypoint", ()), *given.get("Cmd", ())]
    environment = [*given.get("Env", ()), *(f"{k}={v}" for k, v in wanted.environment.items())]
    capabilities = list(wanted.capabilities)
    spec["process"] |= {
        "terminal": False,
        "user": {"uid": int(user), "gid": int(group or 0)},
        "args": [*command, *wanted.args],
        "env": environment,
        "cwd": str(given.get("WorkingDir") or "/"),
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        "noNewPrivileges": True,
    }
    spec["process"].pop("oomScoreAdj", None)
    spec["root"] = {"path": str(image.root), "readonly": True}
    spec["mounts"].append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"})
    spec["mounts"] += [
        {"destination": there, "type": "bind", "source": str(here), "options": ["rbind", "rw"]}
        for here, there in wanted.binds.items()
    ]
    for namespace in spec["linux"]["namespaces"]:
        if namespace["type"] == "network" and wanted.network:
            namespace["path"] = str(wanted.network)
    return spec


@contextmanager
def network() -> Iterator[Path]:
    """A network namespace whose loopback interface is up."""
    name = f"epf-images-{uuid.uuid4().hex[:6]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield Path("/run/netns", name)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)
