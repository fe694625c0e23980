"""Runs a command in a small throw-away Linux with soft RoCE, bonds and VLANs; for the rdma tier.

QEMU without acceleration boots Debian's kernel as an ELF, with an initramfs of busybox and a few
modules. The machine's own file tree is the guest's, by 9p under an overlay, so that the same
Python and the same code run in it. Its shared folder is written through.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.process import HarnessError

HERE = Path(__file__).parent
MODULES = (
    *("crc32_generic", "virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"),
    *("veth", "bonding", "8021q", "rdma_rxe", "rdma_ucm", "configfs"),
)
XZ_MAGIC = b"\xfd7zXZ\0"
KERNEL_LINE = (
    "console=ttyS0 quiet loglevel=3 panic=-1 rdinit=/init mitigations=off nokaslr tsc=reliable "
    "no_timer_check random.trust_cpu=on cryptomgr.notests audit=0 nowatchdog"
)
LIMIT_S = 600
INSTALL_S = 1800  # half of it may be another's lock
INIT = """#!/bin/sh
B=/bin/busybox
$B mount -t proc p /proc; $B mount -t sysfs s /sys; $B mount -t devtmpfs d /dev
for k in $($B cat /order); do $B insmod /m/$k || echo "insmod $k failed"; done
$B mount -t configfs c /sys/kernel/config; $B ip link set lo up
M="$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000"
$B mount -t tmpfs t /u; $B mkdir /u/up /u/wk
$M,cache=loose,ro root /r; $B mount -t overlay -o lowerdir=/r,upperdir=/u/up,workdir=/u/wk o /n
for d in proc sys dev; do $B mount --rbind /$d /n/$d; done
$B mount -t tmpfs t /n/run
$B mkdir /n/run/vm; $M,cache=none share /n/run/vm
$B chroot /n /bin/bash /run/vm/command > /n/run/vm/output 2>&1 < /dev/null
echo $? > /n/run/vm/code; $B sync; echo o > /proc/sysrq-trigger; $B sleep 60
"""


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


def missing() -> str | None:
    """Why there can be no VM here; packages that only lack are installed by `prepare`."""
    if os.uname().machine != "x86_64":
        return "the soft-RoCE machine is made for x86_64"
    return None if os.geteuid() == 0 else "needs root"


def run(
    command: list[str | Path],
    environment: dict[str, str],
    limit_s: float = LIMIT_S,
    shape: Shape = Shape(),
) -> tuple[int, str]:
    """Exit status and output of `command` in a fresh guest, which is ended after `limit_s`.

    Raises HarnessError.
    """
    kernel, initramfs = prepare()
    with tempfile.TemporaryDirectory(prefix="epfabric-vm-") as folder:
        share = Path(folder)
        exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in environment.items())
        (share / "command").write_text(exports + shlex.join(map(str, command)) + "\n")
        log = share / "qemu.log"
        with log.open("wb") as out:
            subprocess.run(
                _qemu(kernel, initramfs, share, limit_s, shape),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                check=False,
            )
        said = share / "output"
        output = said.read_text(errors="replace") if said.exists() else ""
        code = share / "code"
        if not code.exists():
            tail = output[-2000:] + log.read_text(errors="replace")[-2000:]
            raise HarnessError(f"the VM did not end in order within {limit_s:.0f} s:\n{tail}")
        return int(code.read_text()), output


@functools.cache
def prepare() -> tuple[Path, Path]:
    """The kernel and the initramfs, from the cache or made now (some seconds)."""
    _install()
    images = sorted(Path("/boot").glob("vmlinuz-*-amd64"), key=lambda path: path.stat().st_mtime)
    if not images:
        raise HarnessError("no kernel in /boot: install linux-image-amd64")
    version = images[-1].name.removeprefix("vmlinuz-")
    key = hashlib.sha256(f"{version} {MODULES} {INIT}".encode()).hexdigest()[:16]
    cache = Path(os.environ.get("EPFABRIC_CACHE", Path.home() / ".cache/epfabric"))
    made = cache / f"vm-{key}"
    if not made.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            folder = Path(temporary) / "vm"
            folder.mkdir()
            image = images[-1].read_bytes()
            # Unpacked here: under emulation that takes seconds.
            unpacked = lzma.LZMADecompressor().decompress(image[image.index(XZ_MAGIC) :])
            (folder / "vmlinux").write_bytes(unpacked)
            _initramfs(folder, version)
            os.rename(folder, made)
    return made / "vmlinux", made / "initramfs"


def _install() -> None:
    wanted = (HERE / "packages-vm.txt").read_text().split()
    query = ["dpkg-query", "-W", "-f=${Package} ${Status}\n", *wanted]
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    lacking = [p for p in wanted if f"{p} install ok installed" not in found]
    if lacking:
        print(f"== installing {', '.join(lacking)} (2 to 3 minutes)", file=sys.stderr, flush=True)
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "-o", "DPkg::Lock::Timeout=900", "install", "-y"]
        try:
            done = subprocess.run(
                [*command, "--no-install-recommends", *lacking],
                env=env,
                capture_output=True,
                text=True,
                timeout=INSTALL_S,
            )
        except subprocess.TimeoutExpired as error:
            raise HarnessError(f"apt-get did not install {lacking} in {INSTALL_S} s") from error
        if done.returncode != 0:
            raise HarnessError(f"apt-get could not install {lacking}: {done.stderr[-1000:]}")


def _initramfs(folder: Path, version: str) -> None:
    root = folder / "root"
    for name in ("bin", "dev", "proc", "sys", "m", "r", "u", "n"):
        (root / name).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    order: dict[str, None] = {}
    for module in MODULES:
        shown = subprocess.run(
            ["modprobe", "-S", version, "--show-depends", module],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for line in shown.splitlines():
            if line.startswith("insmod "):
                path = Path(line.split()[1])
                shutil.copy(path, root / "m" / path.name)
                order.setdefault(path.name)
    (root / "order").write_text("\n".join(order) + "\n")
    init = root / "init"
    init.write_text(INIT)
    init.chmod(0o755)
    with (folder / "initramfs").open("wb") as out:
        names = "\n".join(str(p.relative_to(root)) for p in sorted(root.rglob("*")))
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            cwd=root,
            input=names.encode(),
            stdout=out,
            check=True,
        )
    shutil.rmtree(root)


def _qemu(kernel: Path, initramfs: Path, share: Path, limit_s: float, shape: Shape) -> list[str]:
    return [
        *("timeout", "-k", "5", str(limit_s), "qemu-system-x86_64"),
        *("-M", "q35,hpet=off", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"),
        *shape.options(),
        *("-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-kernel", str(kernel), "-initrd", str(initramfs)),
        *("-append", KERNEL_LINE, "-serial", "stdio"),
        *("-virtfs", _shared("/", "root") + ",readonly=on"),
        *("-virtfs", _shared(str(share), "share")),
    ]


def _shared(path: str, tag: str) -> str:
    return f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap"
