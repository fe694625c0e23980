"""A group's ranks by node: told as they are after any change, and only the changed node anew."""

from __future__ import annotations

import random

from epfabric_agent.groups.ranges import format_ranges
from epfabric_agent.groups.roster import Roster
from epfabric_agent.groups.state import Entrant, NodePart


def entrant(rank: int, node: str) -> Entrant:
    return Entrant(rank, 4096, node, f"ns/pod-{rank}", 0, b"")


def plainly(members: dict[int, Entrant], endpoints: dict[str, str]) -> tuple[NodePart, ...]:
    nodes = dict.fromkeys(members[rank].node for rank in sorted(members))
    return tuple(
        NodePart(
            node,
            endpoints.get(node, ""),
            format_ranges(rank for rank in members if members[rank].node == node),
        )
        for node in nodes
    )


def test_after_each_change_it_tells_what_a_count_from_scratch_tells() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    roster, members = Roster(), dict[int, Entrant]()
    endpoints: dict[str, str] = {}
    for _ in range(600):
        node = f"n{chance.randrange(12)}"
        rank = chance.randrange(64)
        if chance.random() < 0.1:
            endpoints[node] = f"{node}:{chance.randrange(9)}"
        elif rank in members:
            roster.remove(rank)
            del members[rank]
        else:
            members[rank] = entrant(rank, node)
            roster.add(members[rank])
        assert dict(roster) == members
        assert roster.parts(endpoints) == plainly(members, endpoints)
        assert list(roster.ranks_of(node)) == sorted(r for r in members if members[r].node == node)


def test_of_thousands_of_ranks_each_one_that_comes_changes_its_own_node_alone() -> None:
    roster = Roster()
    ranks = list(range(4096))
    random.Random(1).shuffle(ranks)
    before: set[int] = set()
    kept: list[NodePart] = []
    for rank in ranks:
        roster.add(entrant(rank, f"n{rank % 512}"))
        parts = roster.parts({})
        assert len({id(part) for part in parts} - before) <= 1
        kept.extend(part for part in parts if id(part) not in before)  # so that no id comes twice
        before = {id(part) for part in parts} | before
    assert len(kept) == 4096
