"""One agent against 1,023 simulated ranks: what a command, a turn and a rank cost, as against 8."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from epfabric_bench import native

pytestmark = [
    pytest.mark.timeout(320, func_only=True),
    pytest.mark.usefixtures("programs"),
]
FEW, MANY = 9, 1024  # ranks with ours
LINK_BYTES = 1600  # 1,529 of the agent and of the simulated peer


def _peers(**options: int) -> dict[str, Any]:
    return _run([], options)[0]


def _instructions(function: str, folder: Path, world: int) -> tuple[dict[str, Any], int]:
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder / 'profile'}"]
    said, log = _run([*command, f"--toggle-collect=*{function}*"], {"world": world})
    collected = re.search(r"Collected : (\d+)", log)
    assert collected is not None, log[-4000:]
    return said, int(collected[1])


def _run(before: list[str], options: dict[str, int]) -> tuple[dict[str, Any], str]:
    command = [*before, str(native.BUILD / "peers"), *native.arguments(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout)
    assert said["right"]
    return said, done.stderr


def test_four_proxies_serve_a_thousand_ranks_and_every_one_gets_everything() -> None:
    said = _peers(world=MANY, proxies=4, fills=1)
    assert said["links"] == 4 * (MANY - 1)


def test_an_operation_costs_no_more_with_a_thousand_ranks_than_with_eight(tmp_path: Path) -> None:
    """A DRAIN asks each rank for word, so operations are more than commands."""
    spent = {}
    for world in (FEW, MANY):
        said, instructions = _instructions("serve_all", tmp_path, world)
        spent[world] = instructions / said["operations"]
        print(f"{world} ranks: {spent[world]:.0f} instructions an operation; {said}")
    assert spent[MANY] < 1.1 * spent[FEW]


def test_a_turn_without_work_costs_the_same_with_a_thousand_ranks(tmp_path: Path) -> None:
    spent = {}
    for world in (FEW, MANY):
        said, instructions = _instructions("turn_idle", tmp_path, world)
        spent[world] = instructions / said["idle_turns"]
        print(f"{world} ranks: {spent[world]:.0f} instructions a turn")
    assert spent[MANY] < 1.05 * spent[FEW]


def test_a_link_takes_little_memory_until_it_is_used() -> None:
    few, many = _peers(world=FEW, fills=0), _peers(world=MANY, fills=0)
    links = many["links"] - few["links"]
    each = (many["opened_bytes"] - few["opened_bytes"]) / links
    print(f"{each:.0f} bytes a link")
    assert each < LINK_BYTES
