"""NICs that this machine's kernel has not: bonds, VLANs and soft-RoCE devices, in a small VM."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import vm

# About half a minute on an idle machine; emulation suffers most from a busy one.
pytestmark = pytest.mark.timeout(900)
HERE = Path(__file__).parent
PLAIN = {"bond0": 1500, "m0": 1500, "m1": 1500, "bond0.7": 1500, "v0": 1500}
UNSET = {"mode": "RoCE v2", "tos": "0"}


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    environment = {
        "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        "PYTHONPATH": str(HERE.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    code, said = vm.run([sys.executable, HERE / "nics_guest.py"], environment)
    assert code == 0, said
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    assert found["before"] == [PLAIN, UNSET]
    return found


def test_a_bond_takes_its_members_along_and_its_vlan_follows(steps: dict[str, Any]) -> None:
    mtus, _, told = steps["bond"]
    assert mtus == {**dict.fromkeys(PLAIN, 4200), "v0": 1500}
    assert told["bond0 mtu"] == told["bond0.7 mtu"] == told["m0 mtu"] == "AsWanted"
    assert steps["bond restored"][0] == PLAIN


def test_rdma_cm_of_a_soft_roce_device_is_set_and_restored(steps: dict[str, Any]) -> None:
    mtus, rdma_cm, told = steps["rxe"]
    assert mtus == {**PLAIN, "v0": 4200}
    assert rdma_cm == {"mode": "RoCE v2", "tos": "96"}
    assert {told[f"v0 {name}"] for name in ("mtu", "tos", "roceMode")} == {"AsWanted"}
    assert told["v0 pfc"].startswith("Unsupported")
    assert steps["rxe restored"][:2] == [PLAIN, UNSET]


def test_what_the_device_refuses_stays_as_it_was(steps: dict[str, Any]) -> None:
    """Soft RoCE knows version 2 only."""
    _, rdma_cm, told = steps["rxe refuses"]
    assert rdma_cm["mode"] == "RoCE v2"
    assert told["v0 roceMode"].startswith("Failed: the NIC refuses it")


def test_a_vlan_that_carries_the_node_closes_its_bond(steps: dict[str, Any]) -> None:
    mtus, _, told = steps["node on the VLAN"]
    assert mtus == {**PLAIN, "v0": 1400}
    for name in ("bond0", "m0", "m1"):
        assert told[f"{name} mtu"].startswith("Refused: bond0.7 carries the node's address")
