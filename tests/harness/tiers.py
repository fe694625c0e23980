"""Runs the test tiers that this machine can run and names those left out; for `make test`.

Tiers without a cluster run first, while the programs that the others need are being built.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_TESTS_COLLECTED = 5


@dataclass(frozen=True)
class Tier:
    """One folder of `tests/`; `missing` says why this machine cannot run it, or None."""

    name: str
    needs_builds: bool
    missing: Callable[[], str | None] = lambda: None


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
    Tier("repo", needs_builds=False),
    Tier("unit", needs_builds=False),
    Tier("headers", needs_builds=False),
    Tier("native", needs_builds=False),
    Tier("agent", needs_builds=False),
    Tier("bench", needs_builds=False),
    Tier("rdma", needs_builds=False, missing=no_vm),
    Tier("gpu", needs_builds=False, missing=no_gpu),
    Tier("cluster", needs_builds=True, missing=no_root),
    Tier("contract", needs_builds=True, missing=no_root),
    Tier("chart", needs_builds=True, missing=no_root),
    Tier("telemetry", needs_builds=True, missing=no_root),
    Tier("images", needs_builds=True, missing=no_root),
    Tier("node", needs_builds=True, missing=no_nodes),
    Tier("demo", needs_builds=True, missing=no_root),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test", description=__doc__)
    parser.add_argument("tier", nargs="*", metavar="TIER")
    names = [tier.name for tier in TIERS]
    wanted = set(parser.parse_args().tier) or set(names)
    if unknown := wanted - set(names):
        parser.error(f"no tier {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [tier for tier in TIERS if tier.name in wanted]
    left_out = {tier.name: reason for tier in chosen if (reason := tier.missing())}
    runnable = [tier for tier in chosen if tier.name not in left_out]
    begun = time.monotonic()
    failed = run_all(runnable)
    for name, reason in left_out.items():
        say(f"left out: {name} ({reason})")
    verdict = f"failures among {'; '.join(failed)}: named above" if failed else "all passed"
    say(f"{len(runnable)} of {len(TIERS)} tiers in {time.monotonic() - begun:.0f} s: {verdict}")
    return 1 if failed else 0


def run_all(tiers: list[Tier]) -> list[str]:
    """Runs two groups of tiers; returns those, by their tiers, in which something failed."""
    plain = [tier for tier in tiers if not tier.needs_builds]
    clustered = [tier for tier in tiers if tier.needs_builds]
    builds = start_builds() if clustered else []
    failed = []
    try:
        if plain and pytest(plain) != 0:
            failed.append(", ".join(tier.name for tier in plain))
        if builds:
            say("waiting for the programs that the next tiers need (their progress is above)")
            if any(build.wait() != 0 for build in builds):
                say("these could not be built: see above; their tiers are failed")
                return [*failed, ", ".join(tier.name for tier in clustered)]
        if clustered and pytest(clustered) != 0:
            failed.append(", ".join(tier.name for tier in clustered))
    finally:
        for build in builds:
            if build.poll() is None:
                build.terminate()
                build.wait(30)
    return failed


def start_builds() -> list[subprocess.Popen[bytes]]:
    """The Go programs, and beside them the images."""
    return [
        subprocess.Popen([sys.executable, "-m", *module], cwd=ROOT)
        for module in (["harness.build", "all"], ["harness.images"])
    ]


def pytest(tiers: list[Tier]) -> int:
    folders = [f"tests/{tier.name}" for tier in tiers]
    say("running " + ", ".join(tier.name for tier in tiers))
    command = [sys.executable, "-m", "pytest", "-q", "--durations=8", *folders]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == NO_TESTS_COLLECTED:
        say(f"no test was found in {', '.join(folders)}: that is a failure")
    return code


def say(text: str) -> None:
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
