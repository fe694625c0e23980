"""Mount system calls, and the root file system that a container sees; for the launcher.

The root is a tmpfs: folders of the machine's own that an image would hold are bound into it, so
every mount point can be made there without a trace on the machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import Any

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
MS_SHARED = 0x100000
MNT_DETACH = 0x2
CLONE_NEWNS = 0x00020000

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000

# What every image has, and this machine too.
IMAGE_FOLDERS = ("bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr")

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace_fd", ctypes.c_uint64),
    ]


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [word.encode() for word in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), data.encode()) != 0:
        raise failure(f"mount {source} on {target}")


def unmount(target: str) -> None:
    """Detaches a mount with all below it; a target without a mount is no error."""
    number = 0 if _libc.umount2(target.encode(), MNT_DETACH) == 0 else ctypes.get_errno()
    if number not in (0, errno.EINVAL, errno.ENOENT):  # EINVAL: no mount point
        raise OSError(number, f"unmount {target}: {os.strerror(number)}")


def share(folder: str) -> None:
    """Makes `folder` a shared mount: what is mounted below it is seen through all its copies."""
    mount(folder, folder, "", MS_BIND | MS_REC)
    mount("none", folder, "", MS_REC | MS_SHARED)


def mounted_below(folder: str) -> list[str]:
    """The mount points below `folder` in this process's namespace."""
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4].encode().decode("unicode_escape") for line in file]
    return [point for point in points if point.startswith(folder + "/")]


def make_read_only(target: str, *, recursive: bool) -> None:
    """Adds the flag to a mount and leaves its others as they are."""
    attributes = _MountAttributes(set=MS_RDONLY)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    flags = ctypes.c_uint(_AT_RECURSIVE if recursive else 0)
    path = target.encode()
    if _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, path, flags, ctypes.byref(attributes), size) != 0:
        raise failure(f"make {target} read-only")


def own_namespace() -> None:
    """The calling process must have one thread only."""
    if _libc.unshare(CLONE_NEWNS) != 0:
        raise failure("unshare the mount namespace")


def join_namespace(pid: int) -> None:
    """Enters the mount namespace and root of a process."""
    with open(f"/proc/{pid}/ns/mnt", "rb") as file:
        if _libc.setns(file.fileno(), CLONE_NEWNS) != 0:
            raise failure(f"enter the mount namespace of {pid}")


def failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def build_root(new_root: str, spec: dict[str, Any]) -> None:
    """Builds the container's root on the empty folder `new_root` and makes it `/`.

    spec: `visible` (folders shown read-only at their own paths), `hidden` (folders shown empty),
    `mounts` (source, target, readonly, propagation; targets with fewer parts first).
    """
    mount("tmpfs", new_root, "tmpfs", MS_NODEV | MS_NOSUID, "mode=0755")
    targets = [entry["target"] for entry in spec["mounts"]]
    for name in IMAGE_FOLDERS:
        add_image_folder(new_root, name, targets)
    add_system_folders(new_root, privileged=spec["privileged"])
    for folder in spec["visible"]:
        show_folder(new_root, folder)
    for folder in spec["hidden"]:
        if os.path.isdir(new_root + folder):
            mount("tmpfs", new_root + folder, "tmpfs", MS_NODEV | MS_NOSUID, "mode=0755")
    for entry in spec["mounts"]:
        add_volume(new_root, entry)
        for folder in spec["visible"]:  # a volume must not hide the programs
            if folder.startswith(through_links(entry["target"]) + "/"):
                show_folder(new_root, folder)
    enter(new_root)
    if spec["read_only_root"]:
        make_read_only("/", recursive=False)


def show_folder(new_root: str, folder: str) -> None:
    """The machine's folder at its own path, read-only."""
    make_point(new_root, folder, folder)
    mount(folder, new_root + folder, "", MS_BIND)
    make_read_only(new_root + folder, recursive=False)


def add_image_folder(new_root: str, name: str, targets: list[str]) -> None:
    """One of the machine's folders: bound, or under an overlay where a mount point is missing."""
    source = f"/{name}"
    point = new_root + source
    if os.path.islink(source):
        os.symlink(os.readlink(source), point)
        return
    if not os.path.isdir(source):
        return
    os.mkdir(point, 0o755)
    missing = [t for t in targets if t.startswith(source + "/") and not os.path.lexists(t)]
    if not missing:
        mount(source, point, "", MS_BIND | MS_REC)
        mount("none", point, "", MS_REC | MS_PRIVATE)
        make_read_only(point, recursive=True)
        return
    os.makedirs(f"{new_root}/.overlay", 0o700, exist_ok=True)
    layers = {part: f"{new_root}/.overlay/{name}/{part}" for part in ("upper", "work")}
    for folder in layers.values():
        os.makedirs(folder)
    options = f"lowerdir={source},upperdir={layers['upper']},workdir={layers['work']}"
    mount("overlay", point, "overlay", MS_NODEV, options)


def add_system_folders(new_root: str, *, privileged: bool) -> None:
    for name in ("proc", "sys", "dev"):
        os.mkdir(f"{new_root}/{name}", 0o755)
        mount(f"/{name}", f"{new_root}/{name}", "", MS_BIND | MS_REC)
        mount("none", f"{new_root}/{name}", "", MS_REC | MS_PRIVATE)
    if not privileged:
        make_read_only(f"{new_root}/sys", recursive=True)
    mount("tmpfs", f"{new_root}/dev/shm", "tmpfs", MS_NODEV | MS_NOSUID, "mode=1777")
    for name, mode in (("run", 0o755), ("root", 0o700), ("tmp", 0o1777), ("opt", 0o755)):
        os.mkdir(f"{new_root}/{name}")
        os.chmod(f"{new_root}/{name}", mode)
    for name, mode in (("var", 0o755), ("var/lib", 0o755), ("var/log", 0o755), ("var/tmp", 0o1777)):
        os.mkdir(f"{new_root}/{name}")
        os.chmod(f"{new_root}/{name}", mode)
    os.symlink("/run", f"{new_root}/var/run")


def add_volume(new_root: str, entry: dict[str, Any]) -> None:
    source, target = entry["source"], through_links(entry["target"])
    make_point(new_root, target, source)
    point = new_root + target
    mount(source, point, "", MS_BIND | MS_REC)
    if entry["propagation"] == "HostToContainer":
        mount("none", point, "", MS_REC | MS_SLAVE)
    elif entry["propagation"] != "Bidirectional":
        mount("none", point, "", MS_REC | MS_PRIVATE)
    if entry["readonly"]:
        make_read_only(point, recursive=True)


def through_links(target: str) -> str:
    """`/var/run` is a link in the image; a path through it must not leave the new root."""
    path = os.path.normpath(target)
    if path == "/var/run" or path.startswith("/var/run/"):
        return path[len("/var") :]
    return path


def make_point(new_root: str, target: str, source: str) -> None:
    """A folder or an empty file, as `source` is one; folders on the way are open to all."""
    point = new_root + target
    if os.path.lexists(point):
        make_passable(new_root, target)
        return
    if stat.S_ISDIR(os.stat(source).st_mode):
        os.makedirs(point, 0o755)
    else:
        os.makedirs(os.path.dirname(point), 0o755, exist_ok=True)
        os.close(os.open(point, os.O_CREAT | os.O_WRONLY, 0o644))
    make_passable(new_root, target)


def make_passable(new_root: str, target: str) -> None:
    """Opens `/root` of the new root where something that all may use lies below it."""
    if target.startswith("/root/") and not os.path.ismount(f"{new_root}/root"):
        os.chmod(f"{new_root}/root", 0o755)


def enter(new_root: str) -> None:
    """Makes `new_root` the root and drops the old one without a word to its peers."""
    old = f"{new_root}/.old"
    os.mkdir(old, 0o700)
    number = _PIVOT_ROOT[os.uname().machine]
    if _libc.syscall(number, new_root.encode(), old.encode()) != 0:
        raise failure(f"make {new_root} the root")
    os.chdir("/")
    mount("none", "/.old", "", MS_REC | MS_PRIVATE)
    unmount("/.old")
    os.rmdir("/.old")
