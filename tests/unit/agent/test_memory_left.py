"""What is left of the agent's memory limit, in the layouts of both control group versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from epfabric_agent.session.quota import QuotaError
from epfabric_agent.session.room import RESERVE_BYTES, Room
from epfabric_agent.topology.machine import Machine
from epfabric_agent.topology.memory import left_bytes

MIB = 1 << 20


def tree(root: Path, cgroup: str, files: Mapping[str, object]) -> Machine:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, value in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return Machine(root)


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    assert left_bytes(Machine(tmp_path)) is None
    files = {"memory.max": "max", "a/memory.max": "max", "a/memory.current": 5}
    assert left_bytes(tree(tmp_path, "0::/a\n", files)) is None


def test_the_tightest_group_above_counts_and_idle_files_are_free(tmp_path: Path) -> None:
    files = {
        "pods/memory.max": 100 * MIB,
        "pods/memory.current": 90 * MIB,
        "pods/memory.stat": f"anon 3\ninactive_file {5 * MIB}",
        "pods/a/memory.max": 50 * MIB,
        "pods/a/memory.current": 10 * MIB,
    }
    assert left_bytes(tree(tmp_path, "0::/pods/a\n", files)) == 15 * MIB


def test_version_1_with_a_path_that_is_not_seen_from_a_container(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": 64 * MIB,
        "memory/memory.usage_in_bytes": 60 * MIB,
        "memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {MIB}",
    }
    cgroup = "5:memory:/kubepods/x\n4:cpu,cpuacct:/kubepods/x\n0::/\n"
    assert left_bytes(tree(tmp_path, cgroup, files)) == 5 * MIB


def test_version_1_says_no_limit_by_a_large_number(tmp_path: Path) -> None:
    files = {"memory/a/memory.limit_in_bytes": (1 << 63) - 4096}
    assert left_bytes(tree(tmp_path, "5:memory:/a\n", files)) is None


def test_sessions_that_open_at_once_do_not_take_the_same_room() -> None:
    room = Room(lambda: RESERVE_BYTES + 10)
    session, links = room.take(2, 4)
    with pytest.raises(QuotaError, match=r"takes 6 bytes .* of which \d+ are left .*pools"):
        room.take(5, 1)
    session.settle()
    links.settle()
    links.settle()  # a session that ends when its links are there
    room.take(10)
    with pytest.raises(QuotaError, match="takes 1 bytes"):
        room.take(1)
    Room(lambda: None).take(1 << 50)
