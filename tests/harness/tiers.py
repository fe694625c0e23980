"""Runs the test tiers that this machine can run and names those left out; for `make test`.

What needs nothing else runs first, then the programs that the others need are built, then come the
tiers that mostly wait. Some run as two groups beside each other, where neither keeps more than one
processor busy: otherwise that costs what runs beside it more than it saves.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
# Groups of one pair share no address of this machine.
PLAIN, FUZZ, VMS = "plain", "fuzz", "in a VM"
KUBELETS, AGENTS = "with kubelets", "with agents alone"
NODES, IMAGES = "on real nodes", "of images"
NO_TESTS_COLLECTED = 5
GROUP_S = 5400.0  # of one group, which should never take that long
TIDY_S = 90.0  # in which a group that is interrupted ends what it started
BUILD_S = 3600.0  # of the programs that tiers share, from nothing

Told = IO[bytes] | None  # where the output of a process goes, if not to ours


@dataclass(frozen=True)
class Tier:
    """One folder of `tests/`; `missing` says why this machine cannot run it, or None.

    `costly`: run only where it is named. `bare`: needs none of the programs that tiers share.
    """

    name: str
    group: str  # tiers of one group run one after another, in one session of tests
    missing: Callable[[], str | None] = lambda: None
    costly: bool = False
    bare: bool = False


def no_root() -> str | None:
    return None if os.geteuid() == 0 else "needs root, for mounts"


def no_nodes() -> str | None:
    if shutil.which("runc") is None:
        return "no runc: install the packages of tests/harness/packages.txt"
    return no_root()


def no_vm() -> str | None:
    from harness import vm

    return vm.missing()


def no_gpu() -> str | None:
    return None if shutil.which("nvidia-smi") else "no NVIDIA GPU here; `make gpu` where one is"


TIERS = (
    Tier("repo", PLAIN, bare=True),
    Tier("unit", PLAIN, bare=True),
    Tier("headers", PLAIN, bare=True),
    Tier("native", PLAIN, bare=True),
    Tier("fuzz", FUZZ, bare=True),
    Tier("bench", PLAIN, bare=True),
    Tier("rdma", VMS, missing=no_vm, bare=True),
    Tier("gpu", PLAIN, missing=no_gpu, bare=True),
    Tier("cluster", KUBELETS, missing=no_root),
    Tier("chart", KUBELETS, missing=no_root),
    Tier("agent", AGENTS, bare=True),
    Tier("contract", AGENTS, missing=no_root),
    Tier("telemetry", AGENTS, missing=no_root),
    Tier("images", IMAGES, missing=no_root),
    Tier("node", NODES, missing=no_nodes),
    Tier("demo", NODES, missing=no_root),
    Tier("arm64", IMAGES, missing=no_root, costly=True),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test", description=__doc__)
    parser.add_argument("tier", nargs="*", metavar="TIER")
    names = [tier.name for tier in TIERS]
    named = set(parser.parse_args().tier)
    wanted = named or set(names)
    if unknown := wanted - set(names):
        parser.error(f"no tier {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [tier for tier in TIERS if tier.name in wanted]
    left_out = {tier.name: reason for tier in chosen if (reason := tier.missing())}
    if not named:
        left_out |= {t.name: f"`make test TIER={t.name}`" for t in chosen if t.costly}
    runnable = [tier for tier in chosen if tier.name not in left_out]
    begun = time.monotonic()
    failed = run_all(runnable)
    for name, reason in left_out.items():
        say(f"left out: {name} ({reason})")
    outcome = f"failures among {'; '.join(failed)}: named above" if failed else "all passed"
    say(f"{len(runnable)} of {len(TIERS)} tiers in {time.monotonic() - begun:.0f} s: {outcome}")
    return 1 if failed else 0


def run_all(tiers: list[Tier]) -> list[str]:
    """Returns those groups, by their tiers, in which something failed."""
    plain, fuzz, vms, kubelets, agents, nodes, images = (
        [tier.name for tier in tiers if tier.group == group]
        for group in (PLAIN, FUZZ, VMS, KUBELETS, AGENTS, NODES, IMAGES)
    )
    failed = pytest(plain) + pytest(vms, fuzz)
    if not all(tier.bare for tier in tiers) and not built("all"):
        say("these could not be built: see above; their tiers are failed")
        return list(map(", ".join, [*failed, kubelets + agents + nodes + images]))
    if "images" in images:
        built("arm64")  # its tests build it again where that failed, and say so
    failed += pytest(kubelets, agents) + pytest(nodes, images)
    return list(map(", ".join, failed))


@contextlib.contextmanager
def started(command: list[str], told: Told = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the block. A Ctrl-C reaches it as well: it may tidy up."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=told, stderr=told)
    try:
        yield process
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TIDY_S)
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[bytes], bound_s: float) -> int:
    """Its exit code."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(bound_s)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(TIDY_S)
    process.kill()
    return process.wait()


def built(what: str) -> bool:
    say(f"building {what}, where it is not built yet")
    with started([sys.executable, "-m", "harness.build", what]) as process:
        return ended(process, BUILD_S) == 0


def pytest(*groups: list[str]) -> list[list[str]]:
    """Runs these beside each other and returns those in which something failed.

    The first tells at once what it does, the others when they have ended.
    """
    failed = []
    with contextlib.ExitStack() as stack:
        running: list[tuple[list[str], subprocess.Popen[bytes], Told]] = []
        for names in filter(None, groups):
            say("running " + ", ".join(names))
            folders = [f"tests/{name}" for name in names]
            command = [sys.executable, "-m", "pytest", "-q", "--durations=8", *folders]
            told: Told = stack.enter_context(tempfile.TemporaryFile()) if running else None
            running.append((names, stack.enter_context(started(command, told)), told))
        for names, process, told in running:
            code = ended(process, GROUP_S)
            if told is not None:
                say("what was said of " + ", ".join(names))
                told.seek(0)
                shutil.copyfileobj(told, sys.stdout.buffer)
                sys.stdout.flush()
            if code == NO_TESTS_COLLECTED:
                say(f"no test was found in {', '.join(names)}: that is a failure")
            if code != 0:
                failed.append(names)
    return failed


def say(text: str) -> None:
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
