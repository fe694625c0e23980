"""A site leaves nothing on the machine, however its runner ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import cgroups
from harness.node.wires import Plan

TESTS = Path(__file__).resolve().parents[1]
START_S = 120.0
END_S = 60.0


@pytest.fixture
def site(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`make cluster NODES=1` without make, in a folder of its own, up; no pod runs on it."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "harness.node", "--nodes=1"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if line.startswith("Ctrl-C"):
                    break
            assert process.poll() is None, "".join(said)
            yield process
        finally:
            process.kill()


def what_is_left(folder: Path, link: Path, name: str) -> list[str]:
    """Files, processes, cgroups and the link of the site that keeps its files in `folder`."""
    left = [str(path) for path in folder.iterdir()]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if str(folder) in command:
                left.append(f"process {entry.name} {command}")
    groups = [top / name for top in cgroups.hierarchies()]
    return left + [str(path) for path in [*groups, link] if path.exists()]


def test_nothing_is_left_of_a_killed_site(tmp_path: Path, site: subprocess.Popen[str]) -> None:
    (folder,) = tmp_path.iterdir()
    address = re.search(r"https://10\.(\d+)\.255\.1", (folder / "admin.kubeconfig").read_text())
    assert address is not None
    link = Path("/sys/class/net", Plan(int(address[1])).link)
    before = what_is_left(tmp_path, link, folder.name)
    assert str(link) in before
    assert len(before) > 3 + len(cgroups.hierarchies()), before
    site.send_signal(signal.SIGKILL)
    site.wait(END_S)
    end = time.monotonic() + END_S
    while left := what_is_left(tmp_path, link, folder.name):
        assert time.monotonic() < end, left
        time.sleep(0.1)
