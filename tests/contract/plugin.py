"""Runs `kubectl epfabric` as a person does, and makes what it looks at; for test_kubectl.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from contract.stand import EPFABRIC, Stand, stamp
from epfabric_crds import names
from harness.kubectl import PROGRAM

BIN = Path(sys.executable).parent
TIME_S = 120.0
Object = dict[str, Any]
Done = subprocess.CompletedProcess[str]


def create(stand: Stand, where: str, kind: str, name: str, spec: Object) -> None:
    body = {"apiVersion": names.API_VERSION, "kind": kind, "spec": spec}
    stand.api.post(f"{EPFABRIC}/{where}", {**body, "metadata": {"name": name}})


def condition(type_: str, status: str, reason: str, message: str) -> Object:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": stamp(),
    }


def status(stand: Stand, where: str, value: Object) -> None:
    path = where if where.startswith("/") else f"{EPFABRIC}/{where}"
    stand.api.patch(f"{path}/status", {"status": value}, "application/merge-patch+json")


def plugin(*words: str, kubeconfig: Path | str, path: Path = BIN) -> Done:
    """`kubectl epfabric …`, as a person types it, with the plugin on PATH."""
    environ = {"PATH": f"{path}:/usr/bin:/bin", "KUBECONFIG": str(kubeconfig), "HOME": "/root"}
    return subprocess.run(
        [str(PROGRAM), "epfabric", *words, f"--request-timeout-s={TIME_S // 2:g}"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIME_S,
        check=False,
    )


def made_v1(kind: str, name: str, **metadata: str) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **metadata}}
