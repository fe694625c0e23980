"""An agent at its memory limit: sessions and regions are refused with numbers, nobody is killed."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent.abuse.seat import ask, hello, open_socket, refused, register
from agent.two_agents import TwoAgents
from harness.process import Process
from native.pod import make_memfd

LIMIT = 128 << 20
WORLD = 4096  # 4 MiB of signal words a session


@contextlib.contextmanager
def limited(agent: Process) -> Iterator[None]:
    """The agent in a control group of its own; what it has already is counted elsewhere."""
    own = [
        line.split(":", 2) for line in Path(f"/proc/{agent.pid}/cgroup").read_text().splitlines()
    ]
    groups = {name: path.lstrip("/") for _, names, path in own for name in names.split(",")}
    root = Path("/sys/fs/cgroup") / ("memory" if "memory" in groups else "")
    before = root / groups.get("memory", groups.get("", ""))
    if not before.is_dir():
        before = root
    made = before / f"epfabric-test-{os.getpid()}"
    try:
        made.mkdir()
        limit = "memory.limit_in_bytes" if "memory" in groups else "memory.max"
        (made / limit).write_text(str(LIMIT))
        (made / "cgroup.procs").write_text(str(agent.pid))
    except OSError as error:
        with contextlib.suppress(OSError):
            made.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (before / "cgroup.procs").write_text(str(agent.pid))
        made.rmdir()


def sparse() -> int:
    return make_memfd(1 << 20, fill=False)


def punched() -> int:
    fd = make_memfd(1 << 20)
    mmap.mmap(fd, 1 << 20).madvise(mmap.MADV_REMOVE, 4096, 4096)
    return fd


def truncated() -> int:
    fd = make_memfd(1 << 20)
    os.ftruncate(fd, 1 << 19)
    return fd


def unsealable() -> int:
    fd = os.memfd_create("region", os.MFD_CLOEXEC)
    os.pwrite(fd, bytes(1 << 20), 0)
    return fd


BAD = {
    sparse: "holes",
    punched: "holes",
    truncated: "has 524288 bytes",
    unsealable: "cannot be sealed",
}


def test_an_agent_at_its_memory_limit_refuses_and_lives(pair: TwoAgents) -> None:
    agent = pair.agents["a"]
    with limited(agent), contextlib.ExitStack() as ends:
        code, text, socks = "", "", []
        for rank in range(40):
            sock = ends.enter_context(open_socket(pair.socket("a")))
            answer = ask(sock, hello(rank, WORLD))
            if not answer["ok"]:
                code, text = refused(answer)
                break
            socks.append(sock)
        assert re.search(r"takes \d+ bytes of the agent's own memory, of which \d+ are left", text)
        assert (code, "spec.agent.pools" in text) == ("quota", True)
        assert 2 <= len(socks) < 20
        for make, what in BAD.items():
            fd = make()
            code, text = refused(ask(socks[0], register(1 << 20), fd))
            os.close(fd)
            assert (code, what in text) == ("bad-memfd", True), text
        fd = make_memfd(32 << 20)  # charged to who touched it, not to the agent
        assert ask(socks[1], register(32 << 20), fd)["ok"]
        os.close(fd)
        for sock in socks:
            sock.close()
        assert not agent.ended.is_set()
    with open_socket(pair.socket("a")) as sock:
        assert ask(sock, hello(0, 8))["ok"]
