"""Which results are drawn as lines over tokens."""

from __future__ import annotations

from typing import Any

from epfabric_bench.plot import over_tokens


def rows(*cases: str) -> list[dict[str, Any]]:
    return [{"case": case} for case in cases]


def test_cases_of_so_many_tokens_become_lines_in_their_order() -> None:
    found = over_tokens(rows("128 tokens, combine", "8 tokens, combine", "8 tokens, dispatch fp8"))
    assert {name: [n for n, _ in points] for name, points in found.items()} == {
        "combine": [8, 128],
        "dispatch fp8": [8],
    }
    assert list(over_tokens(rows("1 tokens", "32 tokens"))) == [""]


def test_cases_of_which_one_names_no_tokens_do_not() -> None:
    assert over_tokens(rows("8 tokens, combine", "one thread, batch 8")) == {}
    assert over_tokens(rows("low-latency dispatch")) == {}
