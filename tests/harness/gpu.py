"""Tests and benches that need a GPU, on the machine that has one; for `make gpu`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu"
# Compiled here where the packages of another interpreter are used: module → its source, its home.
NATIVE = {
    "epfabric_agent._native": (ROOT / "agent", ROOT / "agent"),
    "epfabric_host._producer": (ROOT / "kernels/host", ROOT / "kernels/host"),
}

BENCHES = ("gpu_fifo", "low_latency", "proxied", "internode", "buffer", "elastic")
TWO_GPUS = ("two_gpus",)
LIMIT_S = 1800.0  # of the tests, of those under the sanitizer, of the benches
TESTS = ("-q", "--durations=5", "--confcutdir=tests/gpu", "tests/gpu")
# Of API calls only ours are checked, where they are made: torch's own ask for what is not there.
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9",
             "--report-api-errors", "no")  # fmt: skip
# Left out under the sanitizer: whole processes, and what takes long there. Calls between nodes are
# test_cores'.
SLOW = ("tcp", "test_devices", "brokered", "proxied", "mps", "test_a_graph", "test_the_edges",
        "right_numbers", "2-4096-8192", "4-90", "5-64-4096", "7-40", "8-130", "8-70", "4096-512",
        "9-8192", "12-2560")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--no-bench", action="store_true", help="only the tests")
    options = parser.parse_args()
    if shutil.which("nvidia-smi") is None:
        say("no NVIDIA GPU here (nvidia-smi is not on PATH): run this where one is")
        return 1
    subprocess.run(["nvidia-smi", "-L"], check=False, timeout=60)
    for module, (source, home) in NATIVE.items():
        if importlib.util.find_spec(module) is None:
            say(f"building {module}")
            build(source, home)
    code = tests()
    if code == 0 and not options.no_bench:
        say("benches")
        code = run("epfabric_bench", "--plot", *BENCHES, *(TWO_GPUS if gpus() > 1 else ()))
    return code


def tests() -> int:
    """The exit code of the tests, and of those under compute-sanitizer beside them: both mostly
    wait, for processes that start and for one another's turns on the GPU."""
    if shutil.which("compute-sanitizer") is None:
        say("tests (without compute-sanitizer, which is not on PATH)")
        return run("pytest", *TESTS)
    say("tests; beside them all but the slow ones under compute-sanitizer")
    quick = " and ".join(f"not {name}" for name in SLOW)
    with beside("pytest", *TESTS, "-k", quick, under=SANITIZER) as sanitized:
        code = run("pytest", *TESTS)
        return code or sanitized()


def gpus() -> int:
    listed = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60
    )
    return len(listed.stdout.splitlines())


def build(source: Path, home: Path) -> None:
    """Builds a native module in place, with the nanobind of this interpreter."""
    folder = BUILD / source.name
    nanobind = subprocess.run(
        [sys.executable, "-m", "nanobind", "--cmake_dir"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    configure = ["cmake", "-S", str(source), "-B", str(folder), "-G", "Ninja"]
    configure += ["-DCMAKE_BUILD_TYPE=Release", f"-Dnanobind_ROOT={nanobind}"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}"]
    install = ["cmake", "--install", str(folder), "--prefix", str(home)]
    for command in (configure, ["cmake", "--build", str(folder)], install):
        subprocess.run(command, check=True, timeout=600)


def run(module: str, *arguments: str) -> int:
    """The exit code of `python -m module`; what it prints is shown as it comes."""
    begin = time.monotonic()
    command = [sys.executable, "-m", module, *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False, timeout=LIMIT_S).returncode
    say(f"{module} ended with {code} after {time.monotonic() - begin:.0f} s")
    return code


@contextmanager
def beside(module: str, *arguments: str, under: tuple[str, ...]) -> Iterator[Callable[[], int]]:
    """As run(), but beside what is done meanwhile: ask for the exit code in the end. What it prints
    is shown then; who does not ask ends it."""
    begin = time.monotonic()
    BUILD.mkdir(parents=True, exist_ok=True)
    printed = BUILD / f"{under[0]}.log"
    command = [*under, sys.executable, "-m", module, *arguments]
    with printed.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

    def ended() -> int:
        code = process.wait(max(0.0, begin + LIMIT_S - time.monotonic()))
        print(printed.read_text(errors="replace"), file=sys.stderr, flush=True)
        say(f"{under[0]} ended with {code} {time.monotonic() - begin:.0f} s after its begin")
        return code

    try:
        yield ended
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(LIMIT_S)


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
