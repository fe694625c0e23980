"""The coordinator's decisions where lost ranks are masked: who goes, when, and when it fails."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from epfabric_agent.groups.membership import Membership, Stage
from epfabric_agent.groups.state import Action, Entrant, GroupState, Limits, Publish, Send

LIMITS = Limits(join_s=10.0, open_s=5.0, quiesce_s=3.0, mask=True)


class Group:
    """A running group; one letter a rank says on which node it is. Keeps all that was said."""

    def __init__(self, where: str = "aabbccdd") -> None:
        self.where = where
        self.made = Membership("ns/train", 0, LIMITS, bytes(16))
        self.sent: list[tuple[str, str, list[int]]] = []
        self.states: list[GroupState] = []
        self.nodes = list(dict.fromkeys(where))
        for node in self.nodes:
            self.made.attach(node, f"{node}:1", 0)
        for rank in range(len(where)):
            self.made.enter(self.entrant(rank), 0.0)
        for node in self.nodes:
            self.take(self.made.opened(node, self.made.epoch, "", 0.0))
        assert self.made.stage is Stage.RUNNING

    def entrant(self, rank: int) -> Entrant:
        return Entrant(rank, len(self.where), self.where[rank], f"ns/pod-{rank}", 4096, b"blob")

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Publish):
                self.states.append(action.state)
            else:
                self.sent.append(said(action))

    def said(self, kind: str) -> list[tuple[str, list[int]]]:
        """Node and ranks of each message of that kind since the last look."""
        found = [(node, ranks) for what, node, ranks in self.sent if what == kind]
        self.sent = [message for message in self.sent if message[0] != kind]
        return found

    def quiesce(self, *nodes: str) -> None:
        for node in nodes:
            self.take(self.made.quiesced(node, 1, 0.0))

    def lost(self, rank: int) -> None:
        self.take(self.made.lost(self.where[rank], 1, rank, "it ended", 0.0))

    @property
    def last(self) -> GroupState:
        return self.states[-1]


def said(action: Send) -> tuple[str, str, list[int]]:
    kind = action.message.WhichOneof("kind") or ""
    return kind, action.node, list(getattr(getattr(action.message, kind), "ranks", []))


def test_open_tells_every_node_the_policy() -> None:
    made = Membership("ns/train", 0, LIMITS, bytes(16))
    made.attach("a", "a:1", 0)
    (open_,) = [
        action.message.open
        for action in made.enter(Entrant(0, 1, "a", "ns/pod", 4096, b""), 0.0)
        if isinstance(action, Send)
    ]
    assert open_.mask


def test_barriers_go_on_without_a_rank_only_when_every_node_has_masked_it() -> None:
    group = Group()
    group.lost(3)
    assert group.said("mask") == [(node, [3]) for node in "abcd"]
    group.quiesce("a", "b", "c")
    assert group.said("exclude") == []
    assert group.last.masked == ""
    group.quiesce("d")
    assert group.said("exclude") == [(node, [3]) for node in "abcd"]
    assert (group.last.phase, group.last.masked) == ("Ready", "3")
    assert "without rank 3: rank 3 (ns/pod-3 on node b) was lost: it ended" in group.last.reason
    assert group.said("fail") == []


def test_an_agent_takes_all_its_ranks_with_it_and_is_not_asked() -> None:
    group = Group()
    group.take(group.made.detach("c", "reset", 0.0))
    assert group.said("mask") == [(node, [4, 5]) for node in "abd"]
    group.quiesce("a", "b", "d")
    assert group.said("exclude") == [(node, [4, 5]) for node in "abd"]
    assert group.last.masked == "4-5"
    assert "the agent of node c (ranks 4-5) was lost: reset" in group.last.reason


def test_the_coordinators_agent_takes_the_epoch_with_it_also_without_ranks_of_its_own() -> None:
    group = Group()
    group.take(group.made.detach("a", "reset", 0.0))
    assert group.last.phase == "Failed"
    assert "the agent of node a (ranks 0-1) was lost: reset" in group.last.reason
    group = Group()
    for rank in (0, 1):
        group.lost(rank)
        group.quiesce(*"abcd")
    assert group.last.masked == "0-1"
    group.take(group.made.detach("a", "reset", 0.0))
    assert group.last.phase == "Failed"
    assert "node a, which coordinates" in group.last.reason


def test_rank_0_may_be_lost_while_its_agent_stays() -> None:
    group = Group()
    group.lost(0)
    group.quiesce(*"abcd")
    assert (group.last.phase, group.last.masked) == ("Ready", "0")


def test_losses_during_a_round_go_together_in_the_next_one() -> None:
    group = Group()
    group.lost(2)
    group.lost(5)
    group.lost(7)
    group.lost(7)
    assert group.said("mask") == [(node, [2]) for node in "abcd"]
    group.quiesce(*"abcd")
    assert group.said("mask") == [(node, [5, 7]) for node in "abcd"]
    group.quiesce(*"abcd")
    assert group.last.masked == "2,5,7"


def test_a_node_that_is_lost_while_it_is_asked_is_not_waited_for() -> None:
    group = Group()
    group.lost(2)
    group.quiesce("a", "b", "d")
    group.take(group.made.detach("c", "reset", 0.0))
    assert group.said("exclude") == [(node, [2]) for node in "abd"]
    group.quiesce("a", "b", "d")
    assert group.last.masked == "2,4-5"


def test_a_rank_that_is_lost_while_it_leaves_is_masked_and_holds_nobody() -> None:
    group = Group("ab")
    group.take(group.made.leaving("b", 1, 1, 0.0))
    assert group.said("ranks_left") == [("a", [1])]
    group.take(group.made.detach("b", "reset", 0.0))
    group.quiesce("a")
    assert group.said("mask") == [("a", [1])]
    group.quiesce("a")
    assert group.said("exclude") == [("a", [1])]
    group.take(group.made.leaving("a", 1, 0, 0.0))
    assert group.last.phase == "Completed"
    assert "all ranks left in order, but for rank 1" in group.last.reason


def test_the_last_rank_that_leaves_ends_what_the_coordinators_node_kept() -> None:
    group = Group("abb")
    group.lost(0)
    group.quiesce("a", "b")
    for rank in (1, 2):
        group.take(group.made.leaving("b", 1, rank, 0.0))
        group.quiesce("a", "b")
    assert group.last.phase == "Completed"
    assert ("a", []) in group.said("leave_done")


def test_without_survivors_the_epoch_fails() -> None:
    group = Group("aab")
    group.lost(0)
    group.lost(2)
    group.lost(1)
    assert group.last.phase == "Failed"
    assert "rank 1" in group.last.reason
    assert {node for node, _ in group.said("fail")} == {"a", "b"}


def test_a_loss_while_the_group_opens_fails_it() -> None:
    made = Membership("ns/train", 0, LIMITS, bytes(16))
    for node in "ab":
        made.attach(node, f"{node}:1", 0)
    for rank, node in enumerate("ab"):
        made.enter(Entrant(rank, 2, node, f"ns/{rank}", 4096, b""), 0.0)
    actions = made.lost("b", 1, 1, "gone", 0.0)
    assert [action.state.phase for action in actions if isinstance(action, Publish)] == ["Failed"]


def test_a_masked_rank_that_comes_back_waits_for_the_next_epoch() -> None:
    group = Group("ab")
    group.lost(1)
    group.quiesce("a", "b")
    group.take(group.made.enter(group.entrant(1), 0.0))
    assert group.said("refused") == []
    group.take(group.made.leaving("a", 1, 0, 0.0))
    assert (group.made.stage, group.made.epoch) == (Stage.FORMING, 2)


def test_who_cannot_be_reached_is_lost_but_for_the_coordinators_node() -> None:
    group = Group()
    group.take(group.made.unreachable("b", 1, [6], "a write to it failed", 0.0))
    assert group.said("mask") == [(node, [6]) for node in "abcd"]
    group.quiesce(*"abcd")
    group.take(group.made.unreachable("c", 1, [1], "a write to it failed", 0.0))
    assert group.said("mask") == [(node, [4, 5]) for node in "abcd"]
    assert group.made.unreachable("c", 1, [1], "once more", 0.0) == []
    assert group.made.unreachable("b", 7, [1], "another epoch", 0.0) == []


def test_a_barrier_that_takes_too_long_costs_those_who_did_not_come() -> None:
    group = Group()
    group.take(group.made.overdue(1, 9, "barrier 9 was not complete after 100 ms", 0.0))
    assert [node for node, _ in group.said("roll_call")] == list("abcd")
    assert group.made.overdue(1, 9, "again", 0.0) == []
    for node, ranks in (("a", []), ("b", [3, 7]), ("c", [])):  # 7 is not b's to speak for
        group.take(group.made.absent(node, 1, 9, ranks, 0.0))
    group.take(group.made.absent("d", 1, 8, [6], 0.0))  # another barrier
    assert group.said("mask") == []
    group.take(group.made.absent("d", 1, 9, [], 0.0))
    assert group.said("mask") == [(node, [3]) for node in "abcd"]
    group.quiesce(*"abcd")
    assert "barrier 9 was not complete after 100 ms; rank 3 did not come" in group.last.reason
    assert "3 (ns/pod-3 on node b)" in group.last.reason


def test_a_barrier_that_stays_too_long_though_all_have_come_fails_the_epoch() -> None:
    group = Group("ab")
    for _ in range(3):
        group.take(group.made.overdue(1, 2, "barrier 2 was not complete", 0.0))
        for node in "ab":
            group.take(group.made.absent(node, 1, 2, [], 0.0))
    assert group.last.phase == "Failed"
    assert "though every rank had entered" in group.last.reason


def test_a_node_that_does_not_say_who_is_missing_fails_the_epoch_in_time() -> None:
    group = Group("ab")
    group.take(group.made.overdue(1, 2, "barrier 2 was not complete", 1.0))
    assert group.made.deadline == 4.0
    group.take(group.made.absent("a", 1, 2, [], 1.0))
    group.take(group.made.tick(4.0))
    assert "node(s) b did not say who is missing" in group.last.reason


def test_a_node_that_is_lost_during_the_roll_call_is_not_waited_for() -> None:
    group = Group("abc")
    group.take(group.made.overdue(1, 2, "barrier 2 was not complete", 0.0))
    group.take(group.made.absent("a", 1, 2, [], 0.0))
    group.take(group.made.absent("b", 1, 2, [1], 0.0))
    group.take(group.made.detach("c", "reset", 0.0))
    assert group.said("mask") == [("a", [2]), ("b", [2])]
    group.quiesce("a", "b")
    assert group.said("mask") == [("a", [1]), ("b", [1])]


def test_without_the_policy_a_report_of_the_core_changes_nothing() -> None:
    made = Membership("ns/train", 0, Limits(join_s=10.0), bytes(16))
    made.attach("a", "a:1", 0)
    made.enter(Entrant(0, 1, "a", "ns/0", 4096, b""), 0.0)
    made.opened("a", 1, "", 0.0)
    assert made.overdue(1, 0, "late", 0.0) == []
    assert made.unreachable("a", 1, [0], "gone", 0.0) == []


@pytest.mark.parametrize("block", range(4))
def test_random_losses_and_leaves_end_every_rank_once(block: int) -> None:
    """Whatever is lost when: each rank leaves or is excluded once, or the group fails for a cause
    that is named; nothing is waited for in vain."""
    for seed in range(block * 100, block * 100 + 100):
        rng = random.Random(seed)
        where = "a" + "".join(rng.choice("abcd") for _ in range(rng.randint(0, 8)))
        play(Group(where), rng, f"seed {seed}: {where}")


def play(group: Group, rng: random.Random, what: str) -> None:
    owed: list[str] = []
    ended: list[int] = []
    alive = set(group.nodes)
    todo: list[Callable[[], None]] = []

    def lose_node(node: str) -> None:
        alive.discard(node)
        group.take(group.made.detach(node, "reset", 0.0))

    for rank, node in enumerate(group.where):
        if rng.random() < 0.3:
            todo.append(lambda r=rank: group.lost(r))  # type: ignore[misc]
        todo.append(lambda n=node, r=rank: group.take(group.made.leaving(n, 1, r, 0.0)))  # type: ignore[misc]
    doomed = [node for node in group.nodes[1:] if rng.random() < 0.3]
    todo += [lambda n=node: lose_node(n) for node in doomed]  # type: ignore[misc]
    rng.shuffle(todo)
    while group.made.stage is Stage.RUNNING and (todo or owed):
        if todo and (not owed or rng.random() < 0.5):
            todo.pop()()
        else:
            node = owed.pop(rng.randrange(len(owed)))
            if node in alive:
                group.quiesce(node)
        owed += [node for kind in ("mask", "ranks_left") for node, _ in group.said(kind)]
        ended += [rank for _, ranks in group.said("leave_done") for rank in ranks]
        excluded = {tuple(ranks) for _, ranks in group.said("exclude")}
        ended += [rank for ranks in excluded for rank in ranks]
    assert group.made.stage is Stage.IDLE, what
    assert len(ended) == len(set(ended)), what
    if group.last.phase == "Completed":
        untold = {rank for rank, node in enumerate(group.where) if node not in alive}
        assert set(ended) | untold == set(range(len(group.where))), what
    else:
        assert "was lost" in group.last.reason, what
