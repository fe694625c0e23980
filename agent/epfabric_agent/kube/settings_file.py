"""The node's last settings in its state folder, for an agent that starts while the API server is
away; for kube.mode. A file that is not whole, not this node's or not ours is as none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

from epfabric_crds import MirrorError, to_dict
from epfabric_crds.convert import from_dict
from epfabric_crds.node import EPFabricNodeSpec

from epfabric_agent import durable
from epfabric_agent.kube.settings import Wanted

VERSION = 1
NAME = "settings.json"
MAX_BYTES = 1 << 20
_log = logging.getLogger(__name__)


def keep(state_dir: Path, node: str, wanted: Wanted) -> None:
    """Atomic: a reader, or a crash at any point, sees the old file or the new one. OSError."""
    body = {
        "version": VERSION,
        "node": node,
        "uid": wanted.uid,
        "generation": wanted.generation,
        "spec": to_dict(wanted.spec),
    }
    durable.write(state_dir / NAME, json.dumps(body | {"sha256": _digest(body)}).encode())


def kept(state_dir: Path, node: str, fabric: str) -> Wanted | None:
    """What was kept last for this node of this fabric."""
    path = state_dir / NAME
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.warning("the settings in %s are not used: %s", path, error)
        return None
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077
        if not private or found.st_uid != os.geteuid():
            _log.warning("the settings in %s are not used: others may write them", path)
            return None
        data = file.read(MAX_BYTES)
    try:
        return _decode(data, node, fabric)
    except (ValueError, KeyError, TypeError, MirrorError) as error:
        _log.warning("the settings in %s are not used: %s", path, error)
        return None


def forget(state_dir: Path) -> None:
    """The node is in no fabric any more."""
    (state_dir / NAME).unlink(missing_ok=True)


def _decode(data: bytes, node: str, fabric: str) -> Wanted:
    body = json.loads(data)
    digest = body.pop("sha256")
    if body["version"] != VERSION:
        raise ValueError(f"version {body['version']} is not {VERSION}")
    if digest != _digest(body):
        raise ValueError("they are not as they were written")
    spec = from_dict(EPFabricNodeSpec, body["spec"], where="spec")
    if (body["node"], spec.fabric) != (node, fabric):
        raise ValueError(f"they are of node {body['node']} of fabric {spec.fabric}")
    return Wanted(str(body["uid"]), int(body["generation"]), spec)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
