"""The sandbox's image, from pause.c as a static program: an OCI archive, made once a content."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path

from harness import build
from harness.process import HarnessError

SOURCE = Path(__file__).with_name("pause.c")
COMPILE = ("gcc", "-static", "-Os", "-s", "-Wall", "-Wextra", "-Werror")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as OCI names them
NAME = "localhost/pause:1"
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def archive() -> Path:
    """The archive in the cache."""
    key = hashlib.sha256(SOURCE.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:16]
    path = build.cache() / "bin" / f"pause-{key}.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            unfinished = Path(folder, path.name)
            unfinished.write_bytes(pack(compiled(Path(folder))))
            unfinished.rename(path)
    return path


def compiled(folder: Path) -> bytes:
    out = folder / "pause"
    done = subprocess.run([*COMPILE, "-o", out, SOURCE], capture_output=True, text=True)
    if done.returncode != 0:
        raise HarnessError(f"pause.c does not compile:\n{done.stderr}")
    return out.read_bytes()


def pack(program: bytes) -> bytes:
    """An image of one file."""
    layer = tar({"pause": program})
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    }
    described = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, described),
        "layers": [descriptor(LAYER, layer)],
    }
    listed = json.dumps(manifest).encode()
    top = {"io.containerd.image.name": NAME}
    index = {"schemaVersion": 2, "manifests": [descriptor(MANIFEST, listed) | {"annotations": top}]}
    blobs = {f"blobs/sha256/{digest(b)[7:]}": b for b in (layer, described, listed)}
    layout = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    return tar({"oci-layout": layout, "index.json": json.dumps(index).encode(), **blobs})


def tar(files: dict[str, bytes]) -> bytes:
    """The same bytes for the same files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            made.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def descriptor(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest(data), "size": len(data)}


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
