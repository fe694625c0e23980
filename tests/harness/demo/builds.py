"""Builds the programs of cluster and nodes, and the images, in the background; for the demo."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from harness.demo.show import Show
from harness.process import HarnessError, Process, Processes

TESTS = Path(__file__).resolve().parents[2]
SETS = ("controlplane", "kubelet", "containerd", "cni", "prometheus")
LONGEST_SECONDS = 60 * 60.0


def start(processes: Processes) -> list[Process]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    commands = {"programs": ["harness.build", *SETS], "images": ["harness.images"]}
    return [
        processes.start(
            f"build-{name}", [sys.executable, "-m", *command], env=environment, cwd=TESTS
        )
        for name, command in commands.items()
    ]


def wait(builds: list[Process], show: Show) -> None:
    """Shows what the builds say until all have ended."""
    show.step("wait for the programs of cluster and nodes, and for the images")
    shown = dict.fromkeys(builds, 0)
    deadline = time.monotonic() + LONGEST_SECONDS
    running = list(builds)
    while running:
        ended = [build for build in running if build.ended.is_set()]
        for build in running:
            lines = build.log.read_text().splitlines() if build.log.exists() else []
            for line in lines[shown[build] :]:
                if line.startswith("[build]"):
                    show.note(f"{show.elapsed()}  {line.removeprefix('[build] ')}")
            shown[build] = len(lines)
        for build in ended:
            running.remove(build)
            if build.code != 0:
                raise HarnessError(f"{build.name} failed\n{build.tail()}")
        if time.monotonic() > deadline:
            left = "\n".join(build.tail() for build in running)
            raise HarnessError(f"not built within {LONGEST_SECONDS / 60:.0f} min\n{left}")
        time.sleep(0.5)
    show.note("all are there")
