"""An agent in a cpuset on a machine of four NUMA nodes, in the VM: where its proxies run.

CPUs 2n and 2n + 1 are node n's. Node 3 is the nearest to node 1, though the farthest by number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import vm

# A minute and a half on an idle machine; emulation suffers most from a busy one.
pytestmark = pytest.mark.timeout(1800)
HERE = Path(__file__).parent
MODULES = ("epfabric", "epfabric_agent.main", "epfabric_agent.manifest.mode")
DISTANCES = ((10, 30, 20, 30), (30, 10, 30, 20), (20, 30, 10, 30), (30, 20, 30, 10))
LIMIT_S = 900.0


@pytest.fixture(scope="module")
def steps() -> dict[str, Any]:
    # Bytecode is made here: in there that alone takes minutes.
    writes = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    imports = [sys.executable, "-c", f"import {', '.join(MODULES)}"]
    subprocess.run(imports, env=writes, check=True, timeout=120)
    environment = {
        "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        "HOME": "/root",
        "PYTHONPATH": str(HERE.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    shape = vm.Shape(cpus=8, distances=DISTANCES)
    code, said = vm.run([sys.executable, HERE / "cpus_guest.py"], environment, LIMIT_S, shape)
    assert code == 0, said
    found: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    print(found.pop("log"), found)
    assert not found["failed"], found
    return found


def test_a_sessions_proxies_own_cpus_of_the_node_that_its_memory_is_on(
    steps: dict[str, Any],
) -> None:
    """The sessions lie on the nodes with the most room, of those that the cpuset leaves."""
    first, second = steps["opened"]
    assert first == {"cpus": [[2], [3]], "memory": [1], "segments": 2}
    assert second == {"cpus": [[4], [5]], "memory": [2], "segments": 2}
    assert steps["opened says"].startswith("CPUConstrained=False, ProxiesLocal=True: of CPUs 2-7 ")


def test_proxies_whose_node_left_the_cpuset_move_to_the_nearest(steps: dict[str, Any]) -> None:
    """Those of the other session are where they were: such a change unpins all threads."""
    places, says = steps["node gone"]
    assert places == [[[6], [7]], [[4], [5]]]
    assert says == "CPUConstrained=False, ProxiesLocal=False: of CPUs 0-1,4-7 proxies own 4-7"


def test_a_proxy_without_a_cpu_of_its_own_is_pinned_to_nobody_elses(steps: dict[str, Any]) -> None:
    places, says = steps["too few"]
    assert places == [[[6], [4, 5, 6]], [[4], [5]]]
    assert says == "CPUConstrained=True, ProxiesLocal=False: of CPUs 4-6 proxies own 4-6"


def test_proxies_come_back_to_their_memory(steps: dict[str, Any]) -> None:
    places, says = steps["back"]
    assert places == [[[2], [3]], [[4], [5]]]
    assert says == "CPUConstrained=False, ProxiesLocal=True: of CPUs 2-7 proxies own 2-5"


def test_no_message_is_lost_while_proxies_move(steps: dict[str, Any]) -> None:
    assert steps["outcomes"] == ["verified", "verified"]
    assert steps["code"] == 0


def test_a_session_of_a_cpuset_with_one_cpu_has_one_proxy(steps: dict[str, Any]) -> None:
    """Opened right after the change: the agent looks at its cpuset for each session."""
    where, says = steps["one CPU"]
    assert where == {"cpus": [[4]], "memory": [2], "segments": 2}
    assert says == "CPUConstrained=True, ProxiesLocal=True: of CPUs 4 proxies own 4"
