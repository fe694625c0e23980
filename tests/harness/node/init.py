"""Process 1 of a node: makes the node's file systems, then reaps; `harness.node.node` runs it.

It runs in namespaces of its own (processes, mounts, network, host name, IPC): whatever is started
or mounted in them ends with it, as when a machine loses its power. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
from pathlib import Path

BOOT_ID = "/proc/sys/kernel/random/boot_id"
KEPT = ("/var/lib", "/var/log")  # what a reboot leaves, in the node's `disk`


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--disk", type=Path, required=True, help="folder that outlives reboots")
    parser.add_argument("--boot-id", type=Path, required=True, help="file with this boot's id")
    parser.add_argument("--ready", type=Path, required=True, help="file that is made when done")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    socket.sethostname(options.name)
    furnish(options.disk, options.boot_id)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    options.ready.touch()
    while signal.sigwaitinfo({signal.SIGCHLD, signal.SIGTERM}).si_signo != signal.SIGTERM:
        reap()


def furnish(disk: Path, boot_id: Path) -> None:
    """As on a machine: all mounts are shared, /run is in memory, the rest lies on the disk."""
    mount("--make-rshared", "/")
    for path in KEPT:
        place = disk / path.strip("/").replace("/", "-")
        place.mkdir(parents=True, exist_ok=True)
        mount("--bind", str(place), path)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    mount("--bind", "-o", "ro", str(boot_id), BOOT_ID)


def mount(*arguments: str) -> None:
    subprocess.run(["mount", "--no-mtab", *arguments], check=True)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return


if __name__ == "__main__":
    main()
