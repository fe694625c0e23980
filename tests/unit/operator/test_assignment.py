"""Who gets a node: a fabric never loses one to another, and never keeps one it does not select."""

from __future__ import annotations

import random

import pytest
from epfabric_crds import EPFabric
from epfabric_operator.assignment import assign, owner, pool_of
from epfabric_operator.world import World
from unit.operator.builders import fabric, node, world

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
ALL: dict[str, str] = {}


@pytest.mark.parametrize(
    ("case", "things", "expected"),
    [
        ("a free node", [fabric("a"), node("n", pool="a")], "a"),
        ("an unselected node", [fabric("a"), node("n", pool="b")], None),
        (
            "a node of another",
            [fabric("a", NEW), fabric("b", OLD, nodeSelector=ALL), node("n", pool="a", of="a")],
            "a",
        ),
        (
            "a free node that two want goes to the older",
            [fabric("a", NEW), fabric("b", OLD, nodeSelector=ALL), node("n", pool="a")],
            "b",
        ),
        (
            "of equal age, to the first by name",
            [fabric("b", nodeSelector=ALL), fabric("a", nodeSelector=ALL), node("n")],
            "a",
        ),
        (
            "a label of a fabric that selects it no more",
            [fabric("a"), fabric("b"), node("n", pool="b", of="a")],
            "b",
        ),
        ("a label of a fabric that is gone", [fabric("b"), node("n", pool="b", of="a")], "b"),
        ("a label of nobody", [node("n", of="a")], None),
        (
            "a label of a fabric that is going",
            [fabric("a", deleted=NEW), node("n", pool="a", of="a")],
            None,
        ),
    ],
)
def test_a_node_belongs_to(case: str, things: list[object], expected: str | None) -> None:
    made = world(*things)  # type: ignore[arg-type]
    assert owner(made.nodes["n"], made) == expected, case


def test_a_fabric_that_cannot_be_read_keeps_its_nodes() -> None:
    made = world(fabric("b", nodeSelector=ALL), node("n", of="a"), unreadable=frozenset({"a"}))
    assert owner(made.nodes["n"], made) == "a"
    assert assign("b", made).contested == {"n": "a"}


def test_a_contested_node_is_named_with_its_owner() -> None:
    made = world(
        fabric("a", OLD), fabric("b", NEW, nodeSelector=ALL), node("n", pool="a", of="a"), node("m")
    )
    found = assign("b", made)
    assert [n.name for n in found.mine] == ["m"]
    assert found.contested == {"n": "a"}
    assert found.selected == 2
    assert assign("a", made).contested == {}


def test_a_label_that_another_fabric_replaces_is_not_taken_away_first() -> None:
    made = world(fabric("b"), node("n", pool="b", of="z"), node("m", of="z"))
    assert [n.name for n in assign("z", made).release] == ["m"]
    assert [n.name for n in assign("b", made).mine] == ["n"]


def test_every_node_has_at_most_one_owner_and_labels_settle() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    for _ in range(200):
        made = random_world(dice)
        first = owners(made)
        for name, has in first.items():
            label = made.nodes[name].labels.get("epfabric.io/fabric", "")
            keeps = label in made.fabrics and all(
                made.nodes[name].labels.get(k) == v
                for k, v in made.fabrics[label].spec.node_selector.items()
            )
            if keeps:
                assert has == label
        labelled = world(
            *made.fabrics.values(),
            *(
                node(n.name, pool=n.labels["pool"], **({"of": has} if has else {}))
                for n in made.nodes.values()
                for has in [first[n.name]]
            ),
        )
        assert owners(labelled) == first
        assert not any(assign(f, labelled).release for f in "abcd")


def random_world(dice: random.Random) -> World:
    fabrics: list[EPFabric] = [
        fabric(name, dice.choice([OLD, NEW]), nodeSelector=dice.choice([ALL, {"pool": name}]))
        for name in dice.sample("abcd", dice.randrange(4))
    ]
    nodes = [
        node(
            f"n{i}",
            pool=dice.choice("abcd"),
            **({"of": dice.choice("abcd")} if dice.random() < 0.6 else {}),
        )
        for i in range(6)
    ]
    return world(*fabrics, *nodes)


def owners(made: World) -> dict[str, str | None]:
    found: dict[str, str | None] = dict.fromkeys(made.nodes)
    for name in made.fabrics:
        for mine in assign(name, made).mine:
            assert found[mine.name] is None
            found[mine.name] = name
    return found


def test_the_first_pool_that_matches_is_the_nodes() -> None:
    pools = [{"name": "big", "nodeSelector": {"size": "big"}}, {"name": "rest"}]
    made = fabric(agent={"pools": pools})
    assert pool_of(made, node("n", size="big")) == "big"
    assert pool_of(made, node("n")) == "rest"
    assert pool_of(fabric(), node("n")) is None
    assert pool_of(fabric(agent={"pools": pools[:1]}), node("n")) is None
