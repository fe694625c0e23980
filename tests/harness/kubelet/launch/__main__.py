"""Runs one container, as the first line of standard input says; for `harness.kubelet.container`.

Input: a line of JSON (made by `harness.kubelet.plan.launch`), then lines `term` and `kill`; its
end means that the kubelet is gone: everything is killed. Output: lines of JSON, `{"pid": n}`,
then `{"exit": code}` (128 + n after a signal, as container runtimes count), or `{"error": text}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from typing import Any

from harness.kubelet.launch import identity, mounts

REAP_MS = 2000


def main() -> None:
    spec = json.loads(read_line())
    try:
        identity.adopt_orphans()
        logs = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if spec.get("join") is not None:
            mounts.join_namespace(spec["join"])
        else:
            mounts.own_namespace()
            mounts.build_root(spec["new_root"], spec)
        pid = start(spec, logs)
    except (OSError, KeyError, ValueError) as error:
        tell({"error": str(error)})
        return
    tell({"pid": pid})
    tell({"exit": attend(pid)})


def read_line() -> bytes:
    """Byte by byte: what follows the line must stay in the pipe for select."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def tell(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def start(spec: dict[str, Any], logs: int) -> int:
    """Returns the pid once the command runs; OSError when it cannot be run."""
    reader, writer = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        run(spec, logs, writer)
    os.close(writer)
    os.close(logs)
    with os.fdopen(reader) as failed:
        reason = failed.read()
    if reason:
        os.waitpid(pid, 0)
        raise OSError(reason)
    return pid


def run(spec: dict[str, Any], logs: int, failed: int) -> None:
    try:
        os.setsid()
        os.umask(0o022)
        os.chdir(spec["directory"])
        null = os.open(os.devnull, os.O_RDONLY)
        for source, number in ((null, 0), (logs, 1), (logs, 2)):
            os.dup2(source, number)
        identity.assume(spec["user"])
        identity.die_with_parent()
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except BaseException as error:
        os.write(failed, f"cannot run {spec['argv'][:1]}: {error}".encode())
    finally:
        os._exit(127)


def attend(pid: int) -> int:
    """Waits for the end of `pid`, obeys the kubelet meanwhile, leaves no descendant."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(0, select.POLLIN)
    code: int | None = None
    while code is None:
        ready = {number for number, _ in poll.poll(REAP_MS)}
        if 0 in ready and not obey(pid):
            poll.unregister(0)
        code = reap(pid)
    end_descendants()
    return code


def obey(pid: int) -> bool:
    """False when the kubelet is gone."""
    words = os.read(0, 4096)
    if not words or b"kill" in words:
        signal_group(pid, signal.SIGKILL)
    elif b"term" in words:
        # As container runtimes do: the first process only.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return bool(words)


def signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def reap(pid: int) -> int | None:
    """Collects the dead; the exit code of `pid` if it is among them."""
    code = None
    while True:
        try:
            dead, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if dead == 0:
            return code
        if dead == pid:
            number = os.waitstatus_to_exitcode(status)
            code = number if number >= 0 else 128 - number


def end_descendants() -> None:
    """Orphans fall to this process, so killing children until there is none ends them all."""
    while True:
        for child in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


if __name__ == "__main__":
    main()
