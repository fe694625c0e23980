"""Runs buildah, and other programs of an image's build, with progress; nothing decides here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.build import WAIT_SECONDS, say
from harness.process import HarnessError


def output(command: Sequence[str], **environment: str) -> str:
    """Standard output of a command. Raises HarnessError with the end of what it said."""
    return run(command, "", environment)


def run(command: Sequence[str], what: str, environment: dict[str, str] | None = None) -> str:
    """Like output(), and says every 30 s that `what` goes on."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env={**os.environ, **(environment or {})},
            )
        except FileNotFoundError:
            raise HarnessError(
                f"there is no `{command[0]}`: run `bash tests/harness/bootstrap.sh`"
            ) from None
        try:
            while True:
                try:
                    code = child.wait(30)
                    break
                except subprocess.TimeoutExpired:
                    passed = time.monotonic() - begun
                    if what:
                        say(f"  still {what}: {passed:.0f} s")
                    if passed > WAIT_SECONDS:
                        raise HarnessError(f"{what or command[0]} took too long") from None
        except BaseException:
            child.terminate()
            child.wait(20)
            raise
        texts = []
        for file in (out, errors):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    if code != 0:
        end = "\n".join((texts[0] + texts[1]).splitlines()[-30:])
        raise HarnessError(f"`{' '.join(command[:4])} …` failed with status {code}:\n{end}")
    return texts[0]


class Buildah:
    """buildah on a store of its own: it leaves the machine's other images alone."""

    def __init__(self, folder: Path, overlay: bool) -> None:
        self.folder = folder
        self._environment = {
            "BUILDAH_ISOLATION": "chroot",
            "STORAGE_DRIVER": "overlay" if overlay else "vfs",
            "TMPDIR": str(folder / "tmp"),
        }
        (folder / "tmp").mkdir(parents=True, exist_ok=True)

    def __call__(self, *words: str, what: str = "") -> str:
        store = ["--root", str(self.folder / "store"), "--runroot", str(self.folder / "run")]
        return run(["buildah", *store, *words], what, self._environment).strip()

    def has(self, name: str) -> bool:
        return name in self("images", "--format", "{{.Name}}:{{.Tag}}").splitlines()


def is_root() -> bool:
    return os.geteuid() == 0 and sys.platform == "linux"
