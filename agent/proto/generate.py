"""Writes the Python modules of every .proto beside it; for people who change one, and the test
that they are current. Run: `.venv/bin/python agent/proto/generate.py [OUT]`.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped]

HERE = Path(__file__).resolve().parent
PACKAGE = "epfabric_agent/proto"
PLUGINS = ("mypy", "mypy_grpc")


def generate(out: Path) -> None:
    """Writes `OUT/epfabric_agent/proto/*_pb2*`."""
    includes = files("grpc_tools") / "_proto"
    sources = [f"{PACKAGE}/{path.name}" for path in sorted(HERE.glob("*.proto"))]
    programs = Path(sys.executable).parent
    command = [
        "protoc",
        *(f"--plugin=protoc-gen-{name}={programs}/protoc-gen-{name}" for name in PLUGINS),
        f"-I{PACKAGE}={HERE}",
        f"-I{includes}",
        f"--python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--grpc_python_out={out}",
        f"--mypy_grpc_out=quiet:{out}",
        *sources,
    ]
    if protoc.main(command) != 0:
        raise SystemExit("protoc refused the files: see above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent)
