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
import time
from pathlib import Path

from harness import qemu, vm_state
from harness.build import cache, locked
from harness.process import HarnessError
from harness.qemu import Shape as Shape

HERE = Path(__file__).parent
MODULES = (
    *("crc32_generic", "virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"),
    *("veth", "bonding", "8021q", "rdma_rxe", "rdma_ucm", "configfs"),
)
BUSYBOX = Path("/bin/busybox")
XZ_MAGIC = b"\xfd7zXZ\0"
LIMIT_S = 600
INSTALL_S = 1800  # half of it may be another's lock
UNUSED_S = 30 * 86400.0
INIT = f"""#!/bin/sh
B=/bin/busybox
$B mount -t proc p /proc; $B mount -t sysfs s /sys; $B mount -t devtmpfs d /dev
for k in $($B cat /order); do $B insmod /m/$k || echo "insmod $k failed"; done
$B mount -t configfs c /sys/kernel/config; $B ip link set lo up
{vm_state.WAIT}
M="$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000"
$B mount -t tmpfs t /u; $B mkdir /u/up /u/wk
$M,cache=loose,ro root /r; $B mount -t overlay -o lowerdir=/r,upperdir=/u/up,workdir=/u/wk o /n
for d in proc sys dev; do $B mount --rbind /$d /n/$d; done
$B mount -t tmpfs t /n/run
$B mkdir /n/run/vm; $M,cache=none share /n/run/vm
echo > /n/run/vm/begun  # at this machine's time, which becomes the guest's
$B chroot /n /bin/date -s "@$($B chroot /n /bin/stat -c %.9Y /run/vm/begun)" > /dev/null
$B chroot /n /bin/bash /run/vm/command > /n/run/vm/output 2>&1 < /dev/null
echo $? > /n/run/vm/code; $B sync; echo o > /proc/sysrq-trigger; $B sleep 60
"""


def missing() -> str | None:
    """Why there can be no VM here; packages that only lack are installed by `prepare`."""
    if os.uname().machine != "x86_64":
        return "the soft-RoCE machine is made for x86_64"
    return None if os.geteuid() == 0 else "needs root"


def run(
    command: list[str | Path],
    environment: dict[str, str],
    limit_s: float = LIMIT_S,
    shape: Shape = qemu.PLAIN,
) -> tuple[int, str]:
    """Exit status and output of `command` in a fresh guest, which is ended after `limit_s`.

    Raises HarnessError.
    """
    kernel, initramfs = prepare()
    machine = qemu.machine(kernel, initramfs, shape)
    with tempfile.TemporaryDirectory(prefix="epfabric-vm-") as folder:
        share = Path(folder)
        exports = "".join(f"export {k}={shlex.quote(v)}\n" for k, v in environment.items())
        (share / "command").write_text(exports + shlex.join(map(str, command)) + "\n")
        if not _goes_on(kernel.parent, machine, share, limit_s):
            with qemu.guest(machine, share, limit_s) as process:
                process.wait()
        said = share / "output"
        output = said.read_text(errors="replace") if said.exists() else ""
        code = share / "code"
        if not code.exists():
            tail = output[-2000:] + qemu.said(share)
            raise HarnessError(f"the VM did not end in order within {limit_s:.0f} s:\n{tail}")
        return int(code.read_text()), output


def _goes_on(folder: Path, machine: list[str], share: Path, limit_s: float) -> bool:
    """Whether the command began in a guest with the saved state, which has ended now."""
    state = vm_state.opened(folder, machine)
    if state is None:
        return False
    with state, qemu.guest(machine, share, limit_s, "-incoming", "fd:0", stdin=state) as process:
        if vm_state.goes_on(process, share / "begun"):
            process.wait()
            return True
        ended = process.poll() is not None
    vm_state.refuse(state, qemu.said(share), ended)
    return False


@functools.cache
def prepare() -> tuple[Path, Path]:
    """The kernel and the initramfs, from the cache or made now (some seconds)."""
    _install()
    images = sorted(Path("/boot").glob("vmlinuz-*-amd64"), key=lambda path: path.stat().st_mtime)
    if not images:
        raise HarnessError("no kernel in /boot: install linux-image-amd64")
    version = images[-1].name.removeprefix("vmlinuz-")
    modules = _modules(version)
    digest = hashlib.sha256(INIT.encode())
    for path in (images[-1], BUSYBOX, *modules):
        digest.update(path.read_bytes())
    made = cache() / f"vm-{digest.hexdigest()[:16]}"
    with locked(cache() / "vm.lock", "another making of the VM's kernel"):
        if not made.is_dir():
            _make(made, images[-1], modules)
        os.utime(made)
        forget_unused(cache(), time.time())
    return made / "vmlinux", made / "initramfs"


def forget_unused(folder: Path, now: float) -> None:
    """Removes kernels, with their states, that nobody has asked for lately."""
    for made in folder.glob("vm-*"):
        if now - made.stat().st_mtime > UNUSED_S:
            shutil.rmtree(made)


def _make(made: Path, image: Path, modules: list[Path]) -> None:
    with tempfile.TemporaryDirectory(dir=made.parent) as temporary:
        folder = Path(temporary) / "vm"
        folder.mkdir()
        packed = image.read_bytes()
        # Unpacked here: under emulation that takes seconds.
        unpacked = lzma.LZMADecompressor().decompress(packed[packed.index(XZ_MAGIC) :])
        (folder / "vmlinux").write_bytes(unpacked)
        _initramfs(folder, modules)
        os.rename(folder, made)


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


def _modules(version: str) -> list[Path]:
    """In the order in which they can be loaded."""
    order: dict[Path, None] = {}
    for module in MODULES:
        shown = subprocess.run(
            ["modprobe", "-S", version, "--show-depends", module],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        lines = (line.split() for line in shown.splitlines())
        order |= {Path(words[1]): None for words in lines if words[0] == "insmod"}
    return list(order)


def _initramfs(folder: Path, modules: list[Path]) -> None:
    root = folder / "root"
    for name in ("bin", "dev", "proc", "sys", "m", "r", "u", "n"):
        (root / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin/busybox")
    (root / "bin/sh").symlink_to("busybox")
    for path in modules:
        shutil.copy(path, root / "m")
    (root / "order").write_text("".join(f"{path.name}\n" for path in modules))
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
