"""Starts QEMU as the small Linux of the rdma tier; for harness.vm and harness.vm_state."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

KERNEL_LINE = (
    "console=ttyS0 quiet loglevel=3 panic=-1 rdinit=/init mitigations=off nokaslr tsc=reliable "
    "no_timer_check random.trust_cpu=on cryptomgr.notests audit=0 nowatchdog"
)
END_S = 10.0


@dataclass(frozen=True)
class Shape:
    """The guest's CPUs and memory, the same for each of its NUMA nodes."""

    cpus: int = 2
    memory_mib: int = 1024
    distances: tuple[tuple[int, ...], ...] = ()
    """Between NUMA nodes, 10 on the diagonal; empty: the guest has one node and is not told."""

    def options(self) -> list[str]:
        nodes = len(self.distances)
        found = ["-smp", str(self.cpus), "-m", str(self.memory_mib)]
        for node in range(nodes):
            each, size = self.cpus // nodes, self.memory_mib // nodes
            cpus = f"cpus={node * each}-{(node + 1) * each - 1}"
            found += ["-object", f"memory-backend-ram,id=m{node},size={size}M"]
            found += ["-numa", f"node,nodeid={node},memdev=m{node},{cpus}"]
        for source, row in enumerate(self.distances):
            for target, value in enumerate(row):
                found += ["-numa", f"dist,src={source},dst={target},val={value}"]
        return found


PLAIN = Shape()


def machine(kernel: Path, initramfs: Path, shape: Shape) -> list[str]:
    """QEMU with what all guests of this shape have alike. Its VM generation ID is a new one each
    time: a guest that goes on from a saved state takes that for its random numbers."""
    return [
        *("qemu-system-x86_64", "-M", "q35,hpet=off"),
        *("-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max", *shape.options()),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-device", "vmgenid,guid=auto", "-kernel", str(kernel), "-initrd", str(initramfs)),
        *("-virtfs", _shared("/", "root") + ",readonly=on"),
    ]


@contextmanager
def guest(
    machine: list[str],
    share: Path,
    limit_s: float,
    *options: str,
    parameters: str = "",
    stdin: int | IO[bytes] = subprocess.DEVNULL,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs while the block does, and no longer than `limit_s`; `share` is written through.

    parameters: more of the kernel's line. Console and log lie in `share`; see `said`.
    """
    command = [
        *("timeout", "-k", "5", str(limit_s), *machine),
        *("-append", f"{KERNEL_LINE} {parameters}".strip(), "-serial", "file:console"),
        *("-virtfs", _shared(str(share), "share"), *options),
    ]
    with (share / "qemu.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=stdin, stdout=log, stderr=log, cwd=share)
    try:
        yield process
    finally:
        process.terminate()  # `timeout` passes it on
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def said(share: Path) -> str:
    """The end of what QEMU and the guest's console said."""
    files = (share / name for name in ("console", "qemu.log"))
    return "".join(f.read_text(errors="replace")[-2000:] for f in files if f.exists())


def _shared(path: str, tag: str) -> str:
    return f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap"
