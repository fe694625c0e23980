"""The rank program over the real core: it checks what arrives, and ends when a rank is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import epfabric
import moe_plan
import numpy as np
import pytest
from epfabric import command

from .core_agent import CoreAgent

PROGRAM = Path(__file__).resolve().parents[3] / "examples/moe_rank.py"
SIZES = ["--tokens", "24", "--experts", "16", "--hidden", "64", "--topk", "4"]
BOUND_S = 60


def start(agent: CoreAgent, rank: int, *options: str) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if "RANK" not in k and "WORLD" not in k}
    environment |= {"RANK": str(rank), "WORLD_SIZE": str(agent.world_size)}
    environment |= {"EPFABRIC_SOCKET": agent.path}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *SIZES, "--timeout-s", "30", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=BOUND_S)
    assert output, errors
    found: dict[str, Any] = json.loads(output)
    assert (process.returncode == 0) == found["ok"]
    return found


@pytest.mark.parametrize("idle", ["", "2", "0,1,2,3"])
def test_ranks_exchange_and_check_every_byte(idle: str, tmp_path: Path) -> None:
    shape = moe_plan.Shape(
        world_size=4, tokens=24, experts=16, hidden=64, topk=4,
        idle_ranks=frozenset(int(r) for r in idle.split(",") if r),
    )  # fmt: skip
    with CoreAgent(tmp_path, 4) as agent:
        options = ("--iterations", "3", "--barriers", "50", "--idle-ranks", idle)
        ranks = [start(agent, rank, *options) for rank in range(4)]
        results = [result(process) for process in ranks]
        agent.wait_for_ends()
        counts = agent.counts
    payload = moe_plan.expected_payload(shape, 3)
    assert [r["sent_bytes"] for r in results] == payload.tolist()
    for rank, count in counts.items():
        carried = {d["rank"]: d["bytes"] for d in count["destinations"]}
        assert carried == dict(enumerate(payload[rank].tolist())), "the core counts other bytes"
        assert not any(ring["refused"] for ring in count["rings"])
    dispatched = sum(len(t) for t in moe_plan.source(shape, 1, 0).to_rank)
    assert bool(dispatched) == ("1" not in idle.split(","))
    assert all(r["bytes_verified"] > 0 for r in results) == (idle != "0,1,2,3")


def test_a_sender_with_other_tokens_is_found_out(tmp_path: Path) -> None:
    with CoreAgent(tmp_path, 2) as agent:
        ranks = [start(agent, 0, "--seed", "1"), start(agent, 1, "--seed", "2")]
        results = [result(process) for process in ranks]
    assert not results[0]["ok"]
    assert not results[1]["ok"]
    assert any("differ" in r["error"] or "announced" in r["error"] for r in results)


def test_the_others_end_when_a_rank_is_killed(tmp_path: Path) -> None:
    with CoreAgent(tmp_path, 4) as agent:
        ranks = [start(agent, rank, "--barriers", "100000000") for rank in range(4)]
        wait_for_barriers(agent, ranks)
        ranks[1].send_signal(signal.SIGKILL)
        ranks[1].communicate(timeout=BOUND_S)
        for rank in (0, 2, 3):
            found = result(ranks[rank])
            assert not found["ok"]
            assert "rank 1 was lost" in found["error"]


def wait_for_barriers(agent: CoreAgent, ranks: list[subprocess.Popen[str]]) -> None:
    for _ in range(BOUND_S * 20):
        phases = agent.core.barrier_stats(1)["phases"]
        if "total" in phases and phases["total"]["count"] > 10:
            return
        assert all(process.poll() is None for process in ranks), "a rank ended too early"
        time.sleep(0.05)
    raise AssertionError("the ranks never came to their barriers")


def test_refused_commands_have_no_effect_and_the_ring_goes_on(tmp_path: Path) -> None:
    with CoreAgent(tmp_path, 1) as agent, epfabric.connect(agent.path, 0, 1) as session:
        region = session.register(8192)
        region.array[:4096] = 9
        session.join()
        ring = session.ring(3)
        beyond = ring.write(0, region.offset, region.offset + 8192, 16)
        with pytest.raises(epfabric.CommandRefused, match="destination-out-of-region") as caught:
            ring.wait(beyond)
        assert caught.value.ticket == beyond
        with pytest.raises(epfabric.CommandRefused, match="rank-out-of-group"):
            ring.wait(ring.write(1, region.offset, region.offset, 16))
        with pytest.raises(epfabric.CommandRefused, match="signal-out-of-range"):
            ring.wait(ring.signal(0, 8))
        ring.push(command.pack_writes(0, region.offset // 16, region.offset // 16 + 256,
                                      np.full(3, 256), 5, 2))  # fmt: skip
        session.wait_signal(0, 3, 5, at_least=6)
        assert (region.array == 9).all()
        session.barrier()
