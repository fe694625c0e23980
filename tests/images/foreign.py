"""What must be true of an image for arm64; used by the tiers images and arm64."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

from harness import arm64
from harness.images import container
from harness.images.container import Container
from harness.images.store import Image
from harness.process import Processes
from images.leftovers import leftovers

WAIT_S = 240.0
RUN_BY = ("Env", "Entrypoint", "User", "WorkingDir")
# Intel's Omni-Path, which libfabric for amd64 is linked with.
X86_ONLY = {"libpsm2-2"}
PYTHON = "/opt/epfabric/bin/python"
# Native code of every kind that an image has: Debian's, wheels', ours.
NATIVE = {
    "operator": "cryptography.x509, yaml._yaml, ssl",
    "agent": "numpy, grpc, pyverbs.device, epfabric_agent._native",
    "csi": "grpc, ssl",
    "client": "numpy, epfabric, epfabric_host._producer",
}
STARTS = """
import os, runpy, sys, {native}
print(os.uname().machine, os.sysconf("SC_PAGE_SIZE"), flush=True)
sys.argv = [{program!r}, "--help"]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def check_start(image: Image, processes: Processes) -> None:
    """Its program tells its use under qemu-user with large pages, all native code loaded.

    Nothing of the build is left in it.
    """
    emulator = processes.folder / "emulator"
    emulator.mkdir()
    shutil.copy(shutil.which("qemu-aarch64-static") or "", emulator / "qemu")
    program = f"/opt/epfabric/bin/epfabric-{image.target}"
    if image.target == "client":
        program = "/opt/epfabric/examples/moe_rank.py"
    code = STARTS.format(native=NATIVE[image.target], program=program)
    pages = str(arm64.PAGE_BYTES)
    wanted = Container(
        command=["/emulator/qemu", "-p", pages, PYTHON, "-c", code], binds={emulator: "/emulator"}
    )
    with container.unpacked(image) as unpacked:
        assert leftovers(unpacked.root) == []
        process = container.start(processes, processes.folder, unpacked, wanted, "main")
        status, said = process.wait(WAIT_S), process.log.read_text()
    assert status == 0, said
    assert said.split()[:2] == ["aarch64", pages]
    assert f"usage: {Path(program).name}" in said


def check_content(image: Image, twin: Image) -> None:
    """The same packages as for amd64, but for drivers of hardware that is x86 alone."""
    ours, theirs = contents(image), contents(twin)
    assert ours - theirs == set()
    assert {name for name, _ in theirs - ours} <= X86_ONLY
    config, other = configuration(image), configuration(twin)
    assert (config["os"], config["architecture"], config["variant"]) == ("linux", "arm64", "v8")
    runs, ran = ({key: c["config"].get(key) for key in RUN_BY} for c in (config, other))
    assert runs == ran


def contents(image: Image) -> set[tuple[str, str]]:
    parts = json.loads(image.bill.read_text())["components"]
    # A rebuild, `+b1`, is of one architecture.
    return {(part["name"], re.sub(r"\+b\d+$", "", part["version"])) for part in parts}


def configuration(image: Image) -> dict[str, Any]:
    """Of the OCI image specification."""
    with tarfile.open(image.archive) as tar:

        def blob(digest: str) -> Any:
            file = tar.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
            assert file is not None
            return json.load(file)

        config: dict[str, Any] = blob(blob(image.digest)["config"]["digest"])
        return config
