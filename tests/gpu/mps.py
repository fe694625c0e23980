"""A CUDA MPS daemon of the tests' own: processes that are its clients share the GPU without taking
turns. For conftest.py."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.process import HarnessError, wait_until

CONTROL = "nvidia-cuda-mps-control"
LIMIT_S = 60
CLIENT = """
from cuda.bindings import driver
for result in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(0)):
    assert result[0] == driver.CUresult.CUDA_SUCCESS, result
"""


class NoMps(Exception):
    """Why there is none here."""


class Mps:
    """environment: of processes that are to be its clients."""

    def __init__(self, folder: Path) -> None:
        """folder: for its pipes and logs; a short path. Raises NoMps."""
        if shutil.which(CONTROL) is None:
            raise NoMps(f"no {CONTROL} here")
        self._folder = folder
        self.environment = {
            f"CUDA_MPS_{name}_DIRECTORY": str(folder / name.lower()) for name in ("PIPE", "LOG")
        }
        for path in self.environment.values():
            Path(path).mkdir()
        with (folder / "said").open("w") as said:
            done = subprocess.run(
                [CONTROL, "-d"], env=os.environ | self.environment, stdin=subprocess.DEVNULL,
                stdout=said, stderr=said, check=False, timeout=LIMIT_S,
            )  # fmt: skip
        if done.returncode != 0:
            raise NoMps(f"{CONTROL} -d ended with {done.returncode}: {self._logs()}")
        try:
            self._try()
        except NoMps:
            with contextlib.suppress(HarnessError, subprocess.TimeoutExpired):
                self.close()
            raise

    def servers(self) -> list[str]:
        """Process ids of what clients' work goes through; one is there after the first client."""
        return self._ask("get_server_list").split()

    def close(self) -> None:
        """When its clients have ended."""
        pid = self._folder / "pipe" / f"{CONTROL}.pid"
        daemon = int(pid.read_text()) if pid.exists() else 0
        try:
            self._ask("quit")
        finally:
            if daemon:
                wait_until(lambda: not alive(daemon), LIMIT_S, f"{CONTROL} to end")

    def _try(self) -> None:
        try:
            done = subprocess.run(
                [sys.executable, "-c", CLIENT], env=os.environ | self.environment,
                capture_output=True, text=True, check=False, timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise NoMps(f"a first client did not end: {self._logs()}") from error
        if done.returncode != 0:
            raise NoMps(f"a first client failed: {done.stderr[-500:]} {self._logs()}")
        if not self.servers():
            raise NoMps(f"a first client was not served: {self._logs()}")

    def _ask(self, command: str) -> str:
        return subprocess.run(
            [CONTROL], input=f"{command}\n", env=os.environ | self.environment,
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        ).stdout  # fmt: skip

    def _logs(self) -> str:
        files = [self._folder / "said", *sorted((self._folder / "log").glob("*.log"))]
        return " ".join(file.read_text()[-500:] for file in files if file.exists())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
