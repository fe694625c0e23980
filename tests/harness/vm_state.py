"""Starts guests from the state of one that has booted, saved once a content; for harness.vm.

The saved guest has loaded its modules and mounted nothing of this machine: QEMU cannot save that.
It goes on once its kernel has told of new random numbers (`qemu.machine`). The file is only read:
any number of guests start from it at once. Its name holds its key, so each `Shape` has one of its
own, and its checksum. Nothing relies on it: where none is to be had a guest boots, and a line says
why.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from harness import qemu
from harness.build import locked
from harness.process import HarnessError

PARAMETER = "EPFABRIC_SAVED=1"  # init finds it in its environment
READY = "ready to be saved"
WAIT = f"""if [ -n "$EPFABRIC_SAVED" ]; then
  echo "{READY}"
  until $B dmesg | $B grep -q "virtual machine fork"; do $B usleep 20000; done
fi"""
SAVE_S = 120.0  # of some 6
GO_ON_S = 60.0  # of 1
CHUNK_BYTES = 1 << 20
ORDERS = b"""migrate_set_parameter max-bandwidth 16G
migrate "exec:cat > state"
info migrate
quit
"""
_refused: set[str] = set()


def opened(folder: Path, machine: list[str]) -> BinaryIO | None:
    """The machine's state, made now where `folder` has none, or None: boot."""
    name = key(tuple(machine))
    if name in _refused:
        return None
    try:
        if (file := whole(folder, name)) is None:
            with locked(folder / "state.lock", "another save of the VM's state"):
                if (file := whole(folder, name)) is None:
                    save(folder, name, machine)
                    file = whole(folder, name)
    except (HarnessError, OSError, subprocess.SubprocessError) as error:
        _refused.add(name)
        say(f"the VM boots, since no state of it could be saved: {error}")
        return None
    return file


@functools.cache
def key(machine: tuple[str, ...]) -> str:
    """Of all that has to be alike; paths of kernel and initramfs hold the keys of their content."""
    asked = [machine[0], "--version"]
    version = subprocess.run(asked, capture_output=True, check=True, timeout=SAVE_S).stdout
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = sorted({line for line in lines if line.startswith(("model name", "flags"))})
    parts = repr((machine, qemu.KERNEL_LINE, PARAMETER, ORDERS, version, cpu))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def whole(folder: Path, name: str) -> BinaryIO | None:
    """The state of that key, at its beginning; one that is not as it was saved is removed."""
    for path in sorted(folder.glob(f"state-{name}.*")):
        with contextlib.suppress(FileNotFoundError):
            file = path.open("rb", buffering=0)  # its offset is what QEMU goes on from
            if path.suffix == f".{checksum(file):08x}":
                return file
            file.close()
            say(f"the saved state {path} is damaged: it is removed")
            path.unlink()
    return None


def checksum(file: BinaryIO) -> int:
    """Of the whole file, which is at its beginning before and after."""
    found = 0
    while chunk := file.read(CHUNK_BYTES):
        found = zlib.crc32(chunk, found)
    file.seek(0)
    return found


def save(folder: Path, name: str, machine: list[str]) -> None:
    """Boots a guest to where it waits, and publishes its state in `folder`. HarnessError, OSError
    or SubprocessError. Under the lock: what another save has left, that was killed, goes."""
    for left in folder.glob(".state-*"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=".state-", dir=folder) as temporary:
        share = Path(temporary)
        monitor = ("-monitor", "stdio")
        with qemu.guest(
            machine, share, SAVE_S, *monitor, parameters=PARAMETER, stdin=subprocess.PIPE
        ) as process:
            if not comes(lambda: READY in qemu.said(share), process, SAVE_S):
                raise HarnessError(f"the VM did not come so far:\n{qemu.said(share)}")
            process.communicate(ORDERS, timeout=SAVE_S)
        if "Migration status: completed" not in (share / "qemu.log").read_text(errors="replace"):
            raise HarnessError(f"QEMU did not save it:\n{qemu.said(share)}")
        with (share / "state").open("rb", buffering=0) as file:
            found = checksum(file)
        os.rename(share / "state", folder / f"state-{name}.{found:08x}")


def goes_on(process: subprocess.Popen[bytes], begun: Path) -> bool:
    """Whether the guest made the file `begun` in good time."""
    return comes(begun.exists, process, GO_ON_S)


def refuse(file: BinaryIO, why: str, ended: bool) -> None:
    """A guest did not go on from that state: none of its key is taken again in this process, since
    each start would lose time. Where QEMU has `ended` the state is at fault and is removed; where
    the guest was slow, others go on from it."""
    path = Path(file.name)
    _refused.add(path.stem.removeprefix("state-"))
    if ended:
        path.unlink(missing_ok=True)
    say(f"the VM boots, since it did not go on from {path}: {why}")


def comes(true: Callable[[], bool], process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether it becomes true within the limit and while the process runs, or at its end."""
    deadline = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < deadline:
        if true():
            return True
        time.sleep(0.02)
    return true()


def say(text: str) -> None:
    print(f"[vm] {text}", file=sys.stderr, flush=True)
