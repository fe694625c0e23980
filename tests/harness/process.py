"""Starts processes that always end with the harness; used by everything in this package.

The processes are children of a warden (see `harness.warden`), which ends them, last started first,
when the harness stops it, dies of an exception or Ctrl-C, or is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 0x4000 | 0x40000
START_SECONDS = 20.0
GRACE_S = 30.0  # as Kubernetes gives a pod: our programs' own bounds (20 s) come first, and say why
END_SECONDS = 60.0

_namespace_lock = threading.Lock()
_in_private_namespace = False


class HarnessError(RuntimeError):
    """Something that the harness needs did not come up; the message says what to look at."""


def private_mounts() -> None:
    """Moves the calling thread, and all that it starts later, into a mount namespace of its own.

    What is mounted later vanishes with the last of these processes. Once per process; needs root.
    """
    global _in_private_namespace
    with _namespace_lock:
        if _in_private_namespace:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNS) != 0:
            raise HarnessError(f"unshare: {os.strerror(ctypes.get_errno())}: run as root")
        if libc.mount(b"none", b"/", None, MS_REC_PRIVATE, None) != 0:
            raise HarnessError(f"mount: {os.strerror(ctypes.get_errno())}: run as root")
        _in_private_namespace = True


class Process:
    """One running process. `code` is None while it runs, negative after a signal."""

    def __init__(self, owner: Processes, name: str, pid: int, log: Path) -> None:
        self.name = name
        self.pid = pid
        self.log = log
        self.code: int | None = None
        self.ended = threading.Event()
        self._owner = owner

    def wait(self, timeout_s: float) -> int:
        """Returns the exit code, or raises HarnessError with the end of the log."""
        if not self.ended.wait(timeout_s):
            raise HarnessError(f"{self.name} still runs after {timeout_s:.0f} s\n{self.tail()}")
        assert self.code is not None
        return self.code

    def signal(self, number: int) -> None:
        if not self.ended.is_set():
            self._owner.ask({"signal": number, "pid": self.pid})

    def stop(self, grace_s: float = GRACE_S) -> int:
        """SIGTERM, then SIGKILL after `grace_s`; returns the exit code."""
        self.signal(signal.SIGTERM)
        if not self.ended.wait(grace_s):
            self.signal(signal.SIGKILL)
        return self.wait(START_SECONDS)

    def tail(self, lines: int = 30) -> str:
        try:
            text = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join([f"--- end of {self.log}", *text[-lines:]])


class Processes:
    """The processes of one run, and its folder, which is removed at the end."""

    def __init__(self, prefix: str = "epfabric-") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        self.folder.chmod(0o755)
        (self.folder / "logs").mkdir()
        self._send_lock = threading.Lock()
        self._answers: dict[int, dict[str, Any]] = {}
        self._answered = threading.Condition()
        self._by_pid: dict[int, Process] = {}
        self._early: dict[int, int] = {}
        self._next = 0
        self._link, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._warden = start_warden(far, self.folder)
        far.close()
        threading.Thread(target=self._listen, daemon=True, name="warden").start()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
    ) -> Process:
        """Starts a program in a session of its own; both its outputs are appended to `log`.

        env: the whole environment (default: the harness's own).
        """
        log = log or self.folder / "logs" / f"{name}.log"
        with self._answered:
            self._next += 1
            number = self._next
        self.ask(
            {
                "id": number,
                "argv": [str(word) for word in argv],
                "env": dict(os.environ if env is None else env),
                "cwd": str(cwd or self.folder),
                "log": str(log),
            }
        )
        with self._answered:
            if not self._answered.wait_for(lambda: number in self._answers, START_SECONDS):
                raise HarnessError(f"the warden did not start {name}")
            answer = self._answers.pop(number)
            if "error" in answer:
                raise HarnessError(f"cannot start {name}: {answer['error']}")
            process = Process(self, name, answer["pid"], log)
            self._by_pid[process.pid] = process
            if process.pid in self._early:
                self._finish(process, self._early.pop(process.pid))
        return process

    def remove_cgroup_at_end(self, name: str) -> None:
        """When all processes have ended, however that came, the cgroup and all below it go."""
        self.ask({"cgroup": name})

    def ask(self, request: Mapping[str, Any]) -> None:
        with self._send_lock:
            self._link.send(json.dumps(request).encode())

    def close(self) -> None:
        """Ends all processes, last started first, and removes the folder."""
        self._link.shutdown(socket.SHUT_WR)
        try:
            self._warden.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise HarnessError(f"processes did not end within {END_SECONDS:.0f} s") from None
        finally:
            self._link.close()

    def _listen(self) -> None:
        while True:
            try:
                packet = self._link.recv(1 << 16)
            except OSError:
                return
            if not packet:
                return
            message = json.loads(packet)
            with self._answered:
                if "id" in message:
                    self._answers[message["id"]] = message
                elif (process := self._by_pid.pop(message["ended"], None)) is not None:
                    self._finish(process, message["code"])
                else:
                    self._early[message["ended"]] = message["code"]
                self._answered.notify_all()

    @staticmethod
    def _finish(process: Process, code: int) -> None:
        process.code = code
        process.ended.set()


def start_warden(link: socket.socket, folder: Path) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("warden.py")
    number = link.fileno()
    return subprocess.Popen(
        [sys.executable, "-ES", program, str(number), folder],
        pass_fds=[number],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
    )


def wait_until(check: Callable[[], bool], timeout_s: float, what: str, *processes: Process) -> None:
    """Waits for `check`; HarnessError, with the ends of the logs, on time-out or an early end."""
    deadline = time.monotonic() + timeout_s
    while not check():
        dead = [process for process in processes if process.ended.is_set()]
        if dead:
            ends = "\n".join(process.tail() for process in dead)
            raise HarnessError(f"{dead[0].name} ended (code {dead[0].code}) before {what}\n{ends}")
        if time.monotonic() > deadline:
            ends = "\n".join(process.tail() for process in processes)
            raise HarnessError(f"not within {timeout_s:.0f} s: {what}\n{ends}")
        time.sleep(0.05)
