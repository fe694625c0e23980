"""Builds the programs of the control plane in the background, for the demo."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from harness.demo.show import Show
from harness.process import HarnessError, Process, Processes

TESTS = Path(__file__).resolve().parents[2]
SETS = ("controlplane", "prometheus")
LONGEST_SECONDS = 60 * 60.0


def start(processes: Processes) -> Process:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return processes.start(
        "build", [sys.executable, "-m", "harness.build", *SETS], env=environment, cwd=TESTS
    )


def wait(build: Process, show: Show) -> None:
    """Shows what the build says until it ends."""
    show.step("wait for the programs of the control plane and for Prometheus")
    shown = 0
    deadline = time.monotonic() + LONGEST_SECONDS
    while True:
        ended = build.ended.is_set()
        lines = build.log.read_text().splitlines() if build.log.exists() else []
        for line in lines[shown:]:
            if line.startswith("[build]"):
                show.note(f"{show.elapsed()}  {line.removeprefix('[build] ')}")
        shown = len(lines)
        if ended:
            break
        if time.monotonic() > deadline:
            raise HarnessError(f"not built within {LONGEST_SECONDS / 60:.0f} min\n{build.tail()}")
        time.sleep(0.5)
    if build.code != 0:
        raise HarnessError(f"the programs could not be built\n{build.tail()}")
    show.note("all are there")
