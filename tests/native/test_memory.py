"""Segments and regions: seals, sizes, holes, quota; what a hostile pod is told."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from epfabric_agent import _native
from native.pod import make_memfd

SHRINK, GROW, WRITE, FUTURE_WRITE, SEAL = 2, 4, 8, 16, 1
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
FALLOC_PUNCH_HOLE = 3  # with KEEP_SIZE


@pytest.fixture
def session() -> Iterator[_native.Session]:
    core = _native.Core(address="", provider="")
    yield core.open_session(
        group=1, rank=0, world=2, rings=2, depth=64, signals=4, cpus=[-1], quota_bytes=1 << 20
    )
    core.close()


def test_segments_are_sealed_and_the_agents_is_read_only_to_others(
    session: _native.Session,
) -> None:
    pod_fd, agent_fd = session.share()
    assert fcntl.fcntl(pod_fd, F_GET_SEALS) == SHRINK | GROW | SEAL
    assert fcntl.fcntl(agent_fd, F_GET_SEALS) == SHRINK | GROW | SEAL | FUTURE_WRITE
    size = os.fstat(agent_fd).st_size
    with pytest.raises(PermissionError):
        mmap.mmap(agent_fd, size)
    with pytest.raises(PermissionError):
        os.pwrite(agent_fd, b"x", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(pod_fd, 4096)
    for fd in (pod_fd, agent_fd):
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    mmap.mmap(pod_fd, os.fstat(pod_fd).st_size).close()
    session.close()
    assert os.fstat(pod_fd).st_size > 0, "they are the caller's own"
    for fd in (pod_fd, agent_fd):
        os.close(fd)
    with pytest.raises(_native.NativeError, match="is closed"):
        session.share()


def test_a_registered_region_is_sealed_and_keeps_its_pages(session: _native.Session) -> None:
    fd = make_memfd(65536)
    view = mmap.mmap(fd, 65536)
    info = session.register_memfd(fd, 65536)
    assert (info.region, info.offset, info.bytes) == (0, 0, 65536)
    assert fcntl.fcntl(fd, F_GET_SEALS) == SHRINK | GROW | FUTURE_WRITE | SEAL
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    with pytest.raises(OSError, match="not permitted"):
        view.madvise(mmap.MADV_REMOVE)
    view[0:5] = b"still"  # the pod's own mapping stays writable
    os.close(fd)


def test_regions_follow_each_other_at_multiples_of_64_kib(session: _native.Session) -> None:
    offsets = []
    for size in (4096, 65536 + 4096, 4096):
        fd = make_memfd(size)
        offsets.append(session.register_memfd(fd, size).offset)
        os.close(fd)
    assert offsets == [0, 65536, 3 * 65536]
    assert session.region_bytes == 3 * 65536 + 4096


def refused(session: _native.Session, fd: int, size: int, message: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(_native.NativeError, match=message):
        session.register_memfd(fd, size)
    assert set(os.listdir("/proc/self/fd")) == before
    os.close(fd)
    assert session.region_bytes == 0


def test_holes_are_refused(session: _native.Session) -> None:
    refused(session, make_memfd(8192, fill=False), 8192, "has holes.*write to every page")
    fd = make_memfd(3 * 4096)
    os.pwrite(fd, b"", 0)
    view = mmap.mmap(fd, 3 * 4096)
    view.madvise(mmap.MADV_REMOVE, 4096, 4096)
    refused(session, fd, 3 * 4096, "has holes .first at byte 4096")


def test_sizes_that_do_not_fit_are_refused(session: _native.Session) -> None:
    refused(session, make_memfd(8192), 4096, "has 8192 bytes, not 4096")
    refused(session, make_memfd(4096), 8192, "has 4096 bytes, not 8192")
    refused(session, make_memfd(4097), 4097, "multiple of 4096")
    refused(session, make_memfd(4096), 0, "multiple of 4096")
    refused(session, make_memfd(4096), (1 << 64) - 4096, "quota")


def test_over_the_quota_is_refused_with_both_numbers(session: _native.Session) -> None:
    fd = make_memfd(1 << 20)
    session.register_memfd(fd, 1 << 20)
    os.close(fd)
    fd = make_memfd(4096)
    with pytest.raises(_native.NativeError, match=r"4096 bytes is over.*1048576 bytes.*1048576"):
        session.register_memfd(fd, 4096)
    os.close(fd)


def test_descriptors_that_are_no_fresh_memfd_are_refused(
    session: _native.Session, tmp_path: object
) -> None:
    file = os.open(f"{tmp_path}/file", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, bytes(4096), 0)
    refused(session, file, 4096, "not a memfd|cannot be sealed")  # the latter on tmpfs
    refused(session, os.open("/dev/zero", os.O_RDWR), 4096, "not a memfd")
    fd = os.memfd_create("unsealable", os.MFD_CLOEXEC)
    os.pwrite(fd, bytes(4096), 0)
    refused(session, fd, 4096, "MFD_ALLOW_SEALING")
    fd = make_memfd(4096)
    fcntl.fcntl(fd, F_ADD_SEALS, WRITE)
    refused(session, fd, 4096, "sealed against writing")
    fd = make_memfd(4096)
    read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    refused(session, read_only, 4096, "Permission denied|Operation not permitted")


def test_huge_pages_are_refused(session: _native.Session) -> None:
    """Their holes cannot be seen, so that the agent might be charged for them."""
    fd = os.memfd_create("huge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    refused(session, fd, 1 << 20, "ordinary pages")


def test_what_is_no_file_of_memory_is_refused(session: _native.Session, tmp_path: Path) -> None:
    one, other = os.pipe()
    left, right = socket.socketpair()
    for fd in (one, other, left.detach(), right.detach(), os.open(tmp_path, os.O_RDONLY)):
        refused(session, fd, 4096, "not a memfd|cannot be sealed")
    with pytest.raises(_native.NativeError, match="not a memfd"):
        session.register_memfd(-1, 4096)


def test_a_memfd_that_changes_while_it_is_registered_is_refused_or_whole() -> None:
    program = Path(__file__).with_name("racing_memfd.py")
    path = os.pathsep.join([str(program.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, program, "150"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    print(f"{done.stdout.strip()} of 150 were registered")
    assert 0 < int(done.stdout) < 150


LITTLE_SPACE = """
import resource
from pathlib import Path
from epfabric_agent import _native

def shape(rank):
    return dict(group=1, rank=rank, world=64, rings=2, depth=64, signals=4, cpus=[-1, -1])

core = _native.Core(address="127.0.1.1")
core.open_session(**shape(0)).close()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
unlimited = resource.getrlimit(resource.RLIMIT_AS)
open_ones, refused = [], 0
for more in range(0, 96, 3):
    resource.setrlimit(resource.RLIMIT_AS, (used + (more << 20), unlimited[1]))
    try:
        open_ones.append(core.open_session(**shape(more)))
        break
    except (_native.NativeError, MemoryError) as error:
        refused += 1
resource.setrlimit(resource.RLIMIT_AS, unlimited)
open_ones.append(core.open_session(**shape(63)))
for session in open_ones:
    session.close()
core.close()
print("refused" if refused else "never")
"""


def test_a_core_without_address_space_refuses_and_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_SPACE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "refused\n", f"{done.returncode} {done.stderr}"


def test_the_same_memfd_cannot_be_registered_twice(session: _native.Session) -> None:
    fd = make_memfd(4096)
    session.register_memfd(fd, 4096)
    with pytest.raises(_native.NativeError, match="register each memfd once"):
        session.register_memfd(fd, 4096)
    os.close(fd)


def test_more_than_sixteen_regions_are_refused(session: _native.Session) -> None:
    for _ in range(16):
        fd = make_memfd(4096)
        session.register_memfd(fd, 4096)
        os.close(fd)
    fd = make_memfd(4096)
    with pytest.raises(_native.NativeError, match="at most 16 regions"):
        session.register_memfd(fd, 4096)
    os.close(fd)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rings": 0}, "1-64 rings"),
        ({"rings": 65}, "1-64 rings"),
        ({"depth": 100}, "power of two"),
        ({"depth": 8}, "power of two"),
        ({"signals": 2049}, "signals"),
        ({"world": 4097}, "ranks"),
        ({"rank": 2}, "not below the world size"),
        ({"cpus": []}, "proxies"),
        ({"cpus": [-1, -1, -1]}, "at most one per ring"),
        ({"cpus": [1000]}, "cannot be pinned to CPU 1000"),
    ],
)
def test_sessions_out_of_range_are_refused(changed: dict[str, object], message: str) -> None:
    core = _native.Core(address="", provider="")
    good = {"group": 1, "rank": 0, "world": 2, "rings": 2, "depth": 64, "signals": 4, "cpus": [-1]}
    with pytest.raises(_native.NativeError, match=message):
        core.open_session(**{**good, **changed})  # type: ignore[arg-type]
    core.close()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"idle": "never"}, "adaptive"),
        ({"drain_batch": 0}, "drain_batch"),
        ({"max_inflight": 16385}, "16384"),
        ({"packing": 9}, "packing is 1-8"),
        ({"histogram_scale": 9}, "histogram_scale"),
        ({"histogram_scale": -1}, "histogram_scale"),
        ({"nics_per_gpu": 9}, "nics_per_gpu is 1-8"),
        ({"qp_selection": "any"}, "leastInflight"),
        ({"address": "node-a", "provider": "tcp;ofi_rxm"}, "not an IP address"),
        ({"address": "192.0.2.77", "provider": "tcp;ofi_rxm"}, "192.0.2.77"),
        ({"address": "127.0.0.1", "provider": "nonsense"}, "nonsense"),
    ],
)
def test_cores_with_wrong_settings_are_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(_native.NativeError, match=message):
        _native.Core(**{"address": "", "provider": "", **changed})  # type: ignore[arg-type]
