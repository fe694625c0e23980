"""What a container's process may do: user, groups, capabilities; for the launcher, before exec."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from typing import Any

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

# By number.
_NAMES = """
CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE
NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG
MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM
BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE
"""
CAPABILITIES = _NAMES.split()

# What container runtimes leave to a container that asks for nothing.
_DEFAULT = """
CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE
SYS_CHROOT KILL AUDIT_WRITE
"""
RUNTIME_DEFAULT = frozenset(_DEFAULT.split())

_libc = ctypes.CDLL(None, use_errno=True)


def set_option(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def adopt_orphans() -> None:
    """Grandchildren whose parent ends become children of this process."""
    set_option(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """After the last change of user: that clears it."""
    set_option(PR_SET_PDEATHSIG, signal.SIGKILL)


def kept(add: list[str], drop: list[str]) -> set[str]:
    """The capabilities that `securityContext.capabilities` leaves."""
    left = set() if "ALL" in drop else set(RUNTIME_DEFAULT) - set(drop)
    return set(CAPABILITIES) if "ALL" in add else left | set(add)


def assume(user: dict[str, Any]) -> None:
    """user: uid, gid, groups, privileged, no_new_privileges, add, drop (capability names)."""
    if not user["privileged"]:
        left = kept(user["add"], user["drop"])
        for number, name in enumerate(CAPABILITIES):
            if name not in left:
                drop_from_bounding_set(number)
    os.setgroups(user["groups"])
    os.setgid(user["gid"])
    os.setuid(user["uid"])
    if user["no_new_privileges"]:
        set_option(PR_SET_NO_NEW_PRIVS, 1)


def drop_from_bounding_set(number: int) -> None:
    if _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        if error != errno.EINVAL:  # EINVAL: a kernel older than the list
            raise OSError(error, f"drop capability {number}: {os.strerror(error)}")
