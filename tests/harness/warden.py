"""The parent of every process that the harness starts; `harness.process` runs it as a program.

It takes requests over an inherited socket and ends everything, last started first, when that socket
closes, and then removes their cgroups and folder: thus nothing survives the harness, not even after
kill -9. Standard library only.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
MNT_DETACH = 2
TERM_SECONDS = 6.0
KILL_SECONDS = 5.0
CGROUP_SECONDS = 20.0
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Warden:
    """One process group for each child; children in the order in which they were started."""

    def __init__(self, link: socket.socket, folder: str) -> None:
        self.link = link
        self.folder = folder
        self.alive: dict[int, None] = {}
        self.cgroups: list[str] = []

    def serve(self) -> None:
        """Handles requests until the harness is gone, then ends all."""
        self.link.settimeout(0.05)
        while True:
            self.reap()
            try:
                packet = self.link.recv(1 << 20)
            except TimeoutError:
                continue
            except OSError:
                break
            if not packet:
                break
            self.handle(json.loads(packet))
        self.end_all()
        remove_cgroups(self.cgroups)
        remove_folder(self.folder)

    def handle(self, request: dict[str, Any]) -> None:
        if "signal" in request:
            if request["pid"] in self.alive:
                send_signal(request["pid"], request["signal"])
            return
        if "cgroup" in request:
            self.cgroups.append(request["cgroup"])
            return
        try:
            pid = spawn(request)
        except OSError as error:
            self.tell({"id": request["id"], "error": str(error)})
            return
        self.alive[pid] = None
        self.tell({"id": request["id"], "pid": pid})

    def reap(self) -> None:
        """Collects the dead: children, and orphans of theirs that fell to this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.alive:
                del self.alive[pid]
                kill_group(pid, signal.SIGKILL)
                self.tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the harness is gone: serve() sees it next
            self.link.send(json.dumps(message).encode())

    def end_all(self) -> None:
        for pid in reversed(list(self.alive)):
            kill_group(pid, signal.SIGTERM)
            self.await_end(pid, TERM_SECONDS)
            kill_group(pid, signal.SIGKILL)
            self.await_end(pid, KILL_SECONDS)
        for orphan in descendants():
            send_signal(orphan, signal.SIGKILL)
        self.reap()

    def await_end(self, pid: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while pid in self.alive and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.01)


def spawn(request: dict[str, Any]) -> int:
    name = request["argv"][0]
    path = shutil.which(name, path=request["env"].get("PATH", os.defpath))
    if path is None:
        raise FileNotFoundError(f"no program {name!r} on PATH")
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    # Held back until the child no longer ignores them: a signal right after the start must count.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        pid = os.fork()
        if pid == 0:
            run_child(request, path, null, log)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        os.close(log)
        os.close(null)


def run_child(request: dict[str, Any], path: str, null: int, log: int) -> None:
    try:
        os.setsid()
        for number in ENDINGS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.closerange(3, 1024)
        os.chdir(request["cwd"])
        os.execve(path, request["argv"], request["env"])
    except OSError as error:
        os.write(2, f"cannot run {path}: {error}\n".encode())
    finally:
        os._exit(127)


def kill_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def send_signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def descendants() -> list[int]:
    """Processes that descend from this one and outlived their process group."""
    parent_of = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parent_of[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: list[int] = []
    frontier = {os.getpid()}
    while frontier:
        frontier = {pid for pid, parent in parent_of.items() if parent in frontier}
        found.extend(frontier)
    return found


def remove_cgroups(names: list[str]) -> None:
    if names:
        program = Path(__file__).with_name("cgroups.py")
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([sys.executable, "-ES", program, *names], timeout=CGROUP_SECONDS)


def remove_folder(folder: str) -> None:
    """Unmounts what is mounted below the folder, then removes it; a mount that stays keeps it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(3):
        for mount in reversed(mounts_below(folder)):
            libc.umount2(mount.encode(), MNT_DETACH)
    if not mounts_below(folder):
        shutil.rmtree(folder, ignore_errors=True)


def mounts_below(folder: str) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    return [point for point in points if point == folder or point.startswith(folder + "/")]


def main() -> None:
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    descriptor, folder = sys.argv[1:]
    Warden(socket.socket(fileno=int(descriptor)), folder).serve()


if __name__ == "__main__":
    main()
