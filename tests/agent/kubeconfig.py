"""A kubeconfig for an agent whose API server is the test's own, or nobody; for this tier."""

from __future__ import annotations

import json
from pathlib import Path


def kubeconfig(folder: Path, port: int) -> Path:
    path = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    user = {"name": "u", "user": {"token": "none"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    named = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "c"}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config"} | named))
    return path
