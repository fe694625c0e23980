"""The verbs transport over soft RoCE: its C++ tests, in a VM with two rails."""

from __future__ import annotations

import pytest
from rdma.built import on_rails, rdma_tests

# Half a minute on an idle machine, with the VM's start; emulation suffers most from a busy one.
pytestmark = pytest.mark.timeout(1800)
LIMIT_S = 400


def test_the_endpoint_and_a_group_of_cores_work_over_two_rails() -> None:
    program = rdma_tests()
    code, said = on_rails(f"timeout {LIMIT_S} {program} --duration=true")
    print(said)
    assert code == 0, said
