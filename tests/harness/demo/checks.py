"""What must be true of an exchange; pure, used by both exchanges of the demo and their tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import moe_plan


class Wrong(Exception):
    """A check of the demo failed; the message says which and by how much."""


@dataclass(frozen=True)
class Work:
    """What each rank does."""

    world_size: int = 8
    tokens: int = 128
    iterations: int = 4
    barriers: int = 1000
    # Long enough to be looked at: the kernel forgets a connection's bytes when it is closed.
    hold_s: int = 8

    @property
    def shape(self) -> moe_plan.Shape:
        return moe_plan.Shape(world_size=self.world_size, tokens=self.tokens)

    def arguments(self) -> list[str]:
        return [
            f"--tokens={self.tokens}",
            f"--iterations={self.iterations}",
            f"--barriers={self.barriers}",
            f"--hold-s={self.hold_s}",
        ]


def result_of(text: str, who: str) -> dict[str, Any]:
    """The line of JSON that a rank prints at its end."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            if not result.get("ok"):
                raise Wrong(f"{who}: {result.get('error')}")
            return result
    raise Wrong(f"{who} printed no result:\n{text[-2000:]}")


def check_results(results: Sequence[Mapping[str, Any]], work: Work) -> None:
    """Each rank once, each with every byte verified that the plan says, and all barriers."""
    ranks = sorted(result["rank"] for result in results)
    if ranks != list(range(work.world_size)):
        raise Wrong(f"results came from ranks {ranks}, not from each of {work.world_size} once")
    payload = moe_plan.expected_payload(work.shape, work.iterations)
    for result in results:
        rank = result["rank"]
        if result["sent_bytes"] != payload[rank].tolist():
            raise Wrong(f"rank {rank} sent {result['sent_bytes']} bytes, not {payload[rank]}")
        if result["barriers"] != work.barriers:
            raise Wrong(f"rank {rank} ran {result['barriers']} barriers, not {work.barriers}")
        if work.tokens and result["bytes_verified"] <= 0:
            raise Wrong(f"rank {rank} verified nothing")


def payload_between(results: Sequence[Mapping[str, Any]], work: Work) -> dict[tuple[str, str], int]:
    """Payload bytes from node to node that numpy expects, from where the ranks ran."""
    node_of = {result["rank"]: result["node"] for result in results}
    payload = moe_plan.expected_payload(work.shape, work.iterations)
    between: dict[tuple[str, str], int] = {}
    for source, row in enumerate(payload):
        for destination, size in enumerate(row):
            pair = (node_of[source], node_of[destination])
            if pair[0] != pair[1]:
                between[pair] = between.get(pair, 0) + int(size)
    return between


def check_carried(
    carried: Mapping[tuple[str, str], int], expected: Mapping[tuple[str, str], int], what: str
) -> None:
    """Every pair of nodes carried at least the payload."""
    for pair, size in sorted(expected.items()):
        if carried.get(pair, 0) < size:
            raise Wrong(
                f"{what}: {pair[0]} → {pair[1]} carried {carried.get(pair, 0):,} bytes, "
                f"less than the payload of {size:,}"
            )


def rows_by_pair(
    expected: Mapping[tuple[str, str], int], *columns: Mapping[tuple[str, str], int]
) -> Iterable[list[str]]:
    for pair in sorted(expected):
        yield [*pair, f"{expected[pair]:,}", *(f"{column.get(pair, 0):,}" for column in columns)]
