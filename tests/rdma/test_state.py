"""Guests that start from one saved state: apart in what they draw, right in what time it is."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import qemu, vm, vm_state
from harness.build import locked

pytestmark = pytest.mark.timeout(900)
# The first draws of all. Packet sequence numbers, tokens and queue keys are drawn by getrandom(2).
DRAWS = """
set -e
cd /proc/sys/kernel/random; cat boot_id uuid
head -c 32 /dev/urandom | sha256sum; head -c 32 /dev/random | sha256sum; echo $SRANDOM
date +%s.%N
dmesg | grep -c 'virtual machine fork' || true
"""


def played() -> list[str]:
    code, said = vm.run(["bash", "-c", DRAWS], {"PATH": os.environ["PATH"]})
    assert code == 0, said
    return said.splitlines()


def test_two_guests_of_one_state_draw_nothing_alike_and_know_the_time() -> None:
    vm.prepare()
    before = time.time()
    with ThreadPoolExecutor(2) as both:
        one, other = (turn.result() for turn in [both.submit(played), both.submit(played)])
    after = time.time()
    assert (one.pop(), other.pop()) == ("1", "1"), "they booted"
    for now in one.pop(), other.pop():
        assert before < float(now) < after
    assert len(one) == 5
    assert not set(one) & set(other)


def test_a_state_that_qemu_refuses_is_removed_and_the_guest_boots(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That of a guest with less memory, under this one's key."""
    kernel, initramfs = vm.prepare()
    shape = qemu.Shape(memory_mib=1536)
    name = vm_state.key(tuple(qemu.machine(kernel, initramfs, shape)))
    foreign = vm_state.opened(kernel.parent, qemu.machine(kernel, initramfs, qemu.PLAIN))
    assert foreign is not None
    own = kernel.parent / f"state-{name}.{foreign.name.rpartition('.')[2]}"
    # Another run of this test would save a right one in its place.
    with foreign, locked(kernel.parent / "refused.lock", "another run of this test"):
        shutil.copy(foreign.name, own)
        code, said = vm.run(["dmesg"], {"PATH": os.environ["PATH"]}, shape=shape)
        assert not own.exists()
    assert code == 0, said
    assert "rdma_rxe: loaded" in said
    assert "virtual machine fork" not in said
    assert f"the VM boots, since it did not go on from {own}: " in capsys.readouterr().err
