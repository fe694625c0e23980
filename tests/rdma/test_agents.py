"""Two agents that exchange over verbs in the VM, and what they say when a rail goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rdma.built import on_rails

# A minute on an idle machine; emulation suffers most from a busy one.
pytestmark = pytest.mark.timeout(1800)
HERE = Path(__file__).parent
MODULES = ("epfabric", "epfabric_agent.main", "epfabric_agent.manifest.mode")
PYVERBS = Path("/usr/lib/python3/dist-packages/pyverbs")


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    alone = tmp_path_factory.mktemp("pyverbs")  # without the other packages of that folder
    (alone / "pyverbs").symlink_to(PYVERBS)
    path = f"{HERE.parent}:{alone}"
    # Bytecode is made here: in there that alone takes minutes.
    writes = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    imports = [sys.executable, "-c", f"import {', '.join(MODULES)}"]
    subprocess.run(imports, env=writes, check=True, timeout=120)
    code, said = on_rails(f"{sys.executable} {HERE / 'agents_guest.py'}", PYTHONPATH=path)
    assert code == 0, said
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    print("\n".join(found.pop("logs").values()), found)
    assert not found["failed"], found
    return found


def is_over(choice: str, ports: str) -> bool:
    """Also whether it says how two NICs for RoCE are taken where nobody said it."""
    return choice.startswith(f"verbs: type is auto; over {ports}; taken for rails")


def test_ranks_of_two_agents_exchange_over_both_rails(steps: dict[str, Any]) -> None:
    assert steps["first"] == ["verified", "verified"]
    assert is_over(steps["choices"]["a"][0], "ra0 (10.9.0.1), ra1 (10.9.1.1)")
    assert is_over(steps["choices"]["b"][0], "rb0 (10.9.0.2), rb1 (10.9.1.2)")
    assert steps["codes"] == [0, 0, 0, 0]


def test_links_over_two_nics_carry_the_right_bytes_over_both(steps: dict[str, Any]) -> None:
    """Each write is two stripes: one for each NIC where they take turns. Where the NIC that will be
    through first takes the next that holds for the first write: none was faster yet."""
    assert steps["striped"] == ["verified", "verified"]
    [choice] = steps["choices"]["c"]
    assert is_over(choice, "ra0 (10.9.0.1), ra1 (10.9.1.1)")
    first, all_of_them = steps["written"]
    assert min(steps["sent"]["c"]) >= all_of_them / 2
    assert min(steps["sent"]["d"]) >= first / 2


def test_a_group_goes_on_over_the_other_rail_when_one_goes_for_good(steps: dict[str, Any]) -> None:
    assert steps["link down"] == ["verified", "verified"]
    for end, rank in (("a", 0), ("b", 1)):
        said = (
            f"what rank {rank} sends to rank {1 - rank} goes over port 1 of RDMA device r{end}1 now"
        )
        assert any(move.startswith(said) for move in steps["moves"]), steps["moves"]


def test_the_next_sessions_use_what_is_left(steps: dict[str, Any]) -> None:
    assert steps["one rail"] == ["verified", "verified"]


def test_a_gid_that_is_gone_is_named_and_another_one_is_chosen(steps: dict[str, Any]) -> None:
    assert all(said.startswith("GroupFailed: ") for said in steps["address gone"])
    assert any("RDMA device ra1 lost its GID 10.9.1.1" in reason for reason in steps["reasons"])
    before, after = steps["choices"]["a"][-2:]
    assert before.endswith("over ra1 (10.9.1.1)")
    assert "over ra1 (fe80::" in after
