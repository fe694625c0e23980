"""Tests and benches that need a GPU, on the machine that has one; for `make gpu`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "gpu"
# Compiled here where the packages of another interpreter are used: module → its source, its home.
NATIVE = {
    "epfabric_agent._native": (ROOT / "agent", ROOT / "agent"),
    "epfabric_host._producer": (ROOT / "kernels/host", ROOT / "kernels/host"),
}

BENCHES = ("gpu_fifo", "low_latency", "proxied", "buffer", "elastic")
TWO_GPUS = ("two_gpus",)
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
    say("tests")
    code = run("pytest", *TESTS)
    if code == 0 and shutil.which("compute-sanitizer") is not None:
        say("the same under compute-sanitizer, but for the slow ones")
        quick = " and ".join(f"not {name}" for name in SLOW)
        code = run("pytest", *TESTS, "-k", quick, under=SANITIZER)
    if code == 0 and not options.no_bench:
        say("benches")
        code = run("epfabric_bench", "--plot", *BENCHES, *(TWO_GPUS if gpus() > 1 else ()))
    return code


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


def run(module: str, *arguments: str, under: tuple[str, ...] = ()) -> int:
    """The exit code of `python -m module`; what it prints is shown as it comes."""
    command = [*under, sys.executable, "-m", module, *arguments]
    begin = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, check=False, env=os.environ, timeout=1800)
    say(f"{module} ended with {done.returncode} after {time.monotonic() - begin:.0f} s")
    return done.returncode


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
