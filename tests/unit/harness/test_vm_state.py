"""A saved state of the VM is taken only as it was saved, and a VM that has none boots.

With programs in QEMU's place that end, or never do what is waited for; tests/rdma has QEMU.
"""

from __future__ import annotations

import os
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import vm, vm_state

STATE = bytes(range(256)) * 5000  # of more than one chunk
KEY = "0123456789abcdef"


@pytest.fixture
def running() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def put(folder: Path, state: bytes) -> Path:
    path = folder / f"state-{KEY}.{zlib.crc32(STATE):08x}"
    path.write_bytes(state)
    return path


def test_a_whole_state_is_given_from_its_beginning(tmp_path: Path) -> None:
    put(tmp_path, STATE)
    for _ in range(2):
        file = vm_state.whole(tmp_path, KEY)
        assert file is not None
        with file:
            done = subprocess.run(["cat"], stdin=file, capture_output=True, check=True)
        assert done.stdout == STATE


@pytest.mark.parametrize("state", [b"", STATE[:-1], STATE + b"x", b"x" + STATE[1:]])
def test_a_damaged_state_is_removed_and_said(
    state: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path, state)
    assert vm_state.whole(tmp_path, KEY) is None
    assert not path.exists()
    assert f"{path} is damaged" in capsys.readouterr().err


def test_a_state_of_another_key_is_not_taken(tmp_path: Path) -> None:
    path = put(tmp_path, STATE)
    assert vm_state.whole(tmp_path, KEY.replace("0", "1")) is None
    assert path.exists()


def test_the_key_changes_with_every_option() -> None:
    keys = {vm_state.key(options) for options in (("true",), ("true", "-m"), ("echo",))}
    assert len(keys) == 3


def test_where_none_can_be_saved_that_is_said_once_and_tried_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = ["true", str(tmp_path)]
    (tmp_path / ".state-killed").mkdir()
    assert vm_state.opened(tmp_path, machine) is None
    assert "no state of it could be saved: the VM did not come so far" in capsys.readouterr().err
    assert vm_state.opened(tmp_path, machine) is None
    assert capsys.readouterr().err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["state.lock"]


def test_a_guest_that_never_goes_on_is_not_waited_for_without_end(
    tmp_path: Path, running: subprocess.Popen[bytes]
) -> None:
    assert not vm_state.comes((tmp_path / "begun").exists, running, limit_s=0.1)


def test_a_guest_that_ended_is_not_waited_for(tmp_path: Path) -> None:
    process = subprocess.Popen(["false"])
    process.wait()
    assert not vm_state.comes((tmp_path / "begun").exists, process, limit_s=1e9)


def test_a_guest_that_went_on_and_ended_at_once_went_on(tmp_path: Path) -> None:
    process = subprocess.Popen(["touch", tmp_path / "begun"])
    process.wait()
    assert vm_state.goes_on(process, tmp_path / "begun")


def test_a_state_whose_guest_was_slow_is_kept_for_others(tmp_path: Path) -> None:
    path = put(tmp_path, STATE)
    with path.open("rb", buffering=0) as file:
        vm_state.refuse(file, "it is slow", ended=False)
        assert path.exists()
        vm_state.refuse(file, "it has ended", ended=True)
        assert not path.exists()


def test_kernels_that_nobody_asks_for_do_not_pile_up(tmp_path: Path) -> None:
    now = time.time()
    for name, age_s in ("vm-old", vm.UNUSED_S + 1), ("vm-new", vm.UNUSED_S / 2):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vmlinux").touch()
        os.utime(tmp_path / name, (now - age_s,) * 2)
    (tmp_path / "vm.lock").touch()
    vm.forget_unused(tmp_path, now)
    assert {path.name for path in tmp_path.iterdir()} == {"vm-new", "vm.lock"}
