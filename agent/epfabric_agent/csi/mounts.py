"""Mounts of the CSI driver, by system calls: attach a directory read-only, look, detach.

A mount that is bound first and remounted read-only later reaches the other members of its
propagation group (the host, and so the pod) as it was bound: writable. So a mount is cloned
unattached, given its flags, and only then attached, in one step that a crash cannot split.
Needs Linux 5.12.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

# Equal on every architecture whose table is newer than the generic one.
_OPEN_TREE = 428
_MOVE_MOUNT = 429
_MOUNT_SETATTR = 442

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_SYMLINK_NOFOLLOW = 0x100
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_ATTR_RDONLY = 0x1
_ATTR_NOSUID = 0x2
_ATTR_NODEV = 0x4
_ATTR_NOEXEC = 0x8
_UMOUNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

REQUIRED_OPTIONS = frozenset({"ro", "nosuid", "nodev", "noexec"})
MAX_STACKED = 32

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace_fd", ctypes.c_uint64),
    ]


class MountError(OSError):
    """A refused mount; the message says which step and where."""


def attach_read_only(directory: Path, target: Path) -> None:
    """Mounts `directory` on `target`: ro, nosuid, nodev, noexec from its first moment."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_SYMLINK_NOFOLLOW
    fd = _call(
        "clone the mount of", directory, _OPEN_TREE, _AT_FDCWD, os.fsencode(directory), flags
    )
    try:
        attributes = _MountAttributes(
            set=_ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV | _ATTR_NOEXEC,
        )
        _call(
            "make read-only",
            directory,
            _MOUNT_SETATTR,
            fd,
            b"",
            _AT_EMPTY_PATH,
            ctypes.byref(attributes),
            ctypes.sizeof(attributes),
        )
        _call(
            "attach at",
            target,
            _MOVE_MOUNT,
            fd,
            b"",
            _AT_FDCWD,
            os.fsencode(target),
            _MOVE_MOUNT_F_EMPTY_PATH,
        )
    finally:
        os.close(fd)


def detach(target: Path) -> None:
    """Removes everything that is mounted on `target` itself; nothing mounted is fine."""
    for _ in range(MAX_STACKED):
        if not is_mount_point(target):
            return
        if _libc.umount2(os.fsencode(target), _UMOUNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            code = ctypes.get_errno()
            if code in (errno.EINVAL, errno.ENOENT):
                return
            raise MountError(code, f"cannot unmount {target}: {os.strerror(code)}")
    raise MountError(
        errno.EBUSY, f"over {MAX_STACKED} mounts lie on {target}: unmount them by hand"
    )


def options_of(target: Path) -> frozenset[str] | None:
    """Options of the uppermost mount on `target`, or None when it is no mount point."""
    found: frozenset[str] | None = None
    wanted = str(target)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split(" ")
            if _unescape(fields[4]) == wanted:
                found = frozenset(fields[5].split(","))
    return found


def is_mount_point(target: Path) -> bool:
    return options_of(target) is not None


def _unescape(text: str) -> str:
    for escaped, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escaped, plain)
    return text


def _call(what: str, path: Path, number: int, *arguments: object) -> int:
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        code = ctypes.get_errno()
        hint = "; Linux 5.12 or newer is needed" if code == errno.ENOSYS else ""
        raise MountError(code, f"cannot {what} {path}: {os.strerror(code)}{hint}")
    return result
