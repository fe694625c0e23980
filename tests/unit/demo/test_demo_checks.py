"""The demo's checks see what is wrong: a demo that could not fail would prove nothing."""

from __future__ import annotations

import copy
import json
from typing import Any

import moe_plan
import pytest
from harness.demo import checks, memory
from harness.demo.checks import Work, Wrong

WORK = Work(world_size=4, tokens=8, iterations=2, barriers=5)
NODES = ["n0", "n0", "n1", "n1"]


def results() -> list[dict[str, Any]]:
    payload = moe_plan.expected_payload(WORK.shape, WORK.iterations)
    return [
        {
            "ok": True,
            "rank": rank,
            "node": NODES[rank],
            "sent_bytes": payload[rank].tolist(),
            "barriers": WORK.barriers,
            "bytes_verified": 1000,
        }
        for rank in range(WORK.world_size)
    ]


def test_right_results_pass() -> None:
    checks.check_results(results(), WORK)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("rank", 1, r"came from ranks \[1, 1, 2, 3\]"),
        ("sent_bytes", [0, 0, 0, 0], "rank 0 sent"),
        ("barriers", 4, "4 barriers, not 5"),
        ("bytes_verified", 0, "verified nothing"),
    ],
)
def test_a_wrong_result_is_seen(key: str, value: object, complaint: str) -> None:
    wrong = results()
    wrong[0][key] = value
    with pytest.raises(Wrong, match=complaint):
        checks.check_results(wrong, WORK)


def test_a_rank_that_is_missing_is_seen() -> None:
    with pytest.raises(Wrong, match="not from each of 4 once"):
        checks.check_results(results()[:3], WORK)


def test_a_rank_that_failed_is_quoted() -> None:
    text = "warning\n" + json.dumps({"ok": False, "rank": 2, "error": "rank 3 was lost"})
    with pytest.raises(Wrong, match="rank 3 was lost"):
        checks.result_of(text, "rank 2")


def test_a_rank_without_a_result_is_quoted() -> None:
    with pytest.raises(Wrong, match=r"(?s)no result.*Segmentation fault"):
        checks.result_of("Segmentation fault\n", "rank 2")


def test_payload_between_nodes_is_the_sum_over_their_ranks() -> None:
    payload = moe_plan.expected_payload(WORK.shape, WORK.iterations)
    between = checks.payload_between(results(), WORK)
    assert between == {
        ("n0", "n1"): int(payload[:2, 2:].sum()),
        ("n1", "n0"): int(payload[2:, :2].sum()),
    }


def test_a_pair_that_carried_a_byte_too_few_is_named() -> None:
    expected = {("n0", "n1"): 100, ("n1", "n0"): 100}
    checks.check_carried({("n0", "n1"): 100, ("n1", "n0"): 150}, expected, "tcp")
    with pytest.raises(Wrong, match="n0 → n1 carried 99 bytes"):
        checks.check_carried({("n0", "n1"): 99, ("n1", "n0"): 150}, expected, "tcp")
    with pytest.raises(Wrong, match="n1 → n0 carried 0 bytes"):
        checks.check_carried({("n0", "n1"): 100}, expected, "tcp")


def view(who: str, node: str, *names: str) -> memory.Mapped:
    lines = [
        f"7f00-7f10 rw-s 00000000 00:01 {name}   /memfd:epfabric (deleted)"
        if name.isdigit()
        else f"7f00-7f10 r-xp 00000000 fe:00 77   {name}"
        for name in names
    ]
    return memory.parse(who, node, "\n".join([*lines, "7f20-7f30 rw-p 00000000 00:00 0"]))


AGENTS = [view("agent n0", "n0", "1", "2"), view("agent n1", "n1", "3", "/x/epfabric_agent.so")]


def test_ranks_that_share_memory_with_their_own_agent_only_pass() -> None:
    ranks = [view("rank 0", "n0", "1"), view("rank 1", "n0", "2"), view("rank 2", "n1", "3")]
    assert memory.check_apart(ranks, AGENTS) == 3


@pytest.mark.parametrize(
    ("rank", "complaint"),
    [
        (view("rank 0", "n0", "3"), "rank 0 on n0 maps memory of n1's agent"),
        (view("rank 0", "n0", "/v/epfabric_agent/_native.so"), "has /v/epfabric_agent/_native.so"),
        (view("rank 0", "n0", "/usr/lib/libfabric.so.1"), r"has /usr/lib/libfabric.so.1 mapped"),
        (view("rank 0", "n0", "9"), "map the same memory"),
    ],
)
def test_a_rank_with_a_mapping_that_it_must_not_have_is_named(
    rank: memory.Mapped, complaint: str
) -> None:
    neighbour = view("rank 1", "n0", "9")
    with pytest.raises(Wrong, match=complaint):
        memory.check_apart([rank, neighbour], AGENTS)


def test_the_work_of_the_demo_is_what_is_promised() -> None:
    work = copy.copy(Work())
    assert (work.world_size, work.tokens, work.barriers) == (8, 128, 1000)
    shape = work.shape
    assert (shape.topk, shape.experts, 2 * shape.hidden) == (8, 64, 7 << 10)
