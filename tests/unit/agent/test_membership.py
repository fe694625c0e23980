"""The coordinator's decisions: who forms an epoch, how it opens, ends, fails; without a clock."""

from __future__ import annotations

import random

from epfabric_agent.groups.membership import Membership, Stage
from epfabric_agent.groups.state import Action, Entrant, GroupState, Limits, Publish, Send
from epfabric_agent.proto import peer_pb2 as pb

UID = bytes(range(16))
LIMITS = Limits(join_s=10.0, open_s=5.0, quiesce_s=3.0)


def entrant(rank: int, node: str = "a", world: int = 4, pod: str = "") -> Entrant:
    return Entrant(rank, world, node, pod or f"ns/pod-{rank}", 4096, b"blob")


def group(*nodes: str) -> Membership:
    made = Membership("ns/train", 0, LIMITS, UID)
    for node in nodes:
        made.attach(node, f"{node}:1", 0)
    return made


def sent(actions: list[Action], kind: str) -> list[tuple[str, pb.ToMember]]:
    return [
        (action.node, action.message)
        for action in actions
        if isinstance(action, Send) and action.message.WhichOneof("kind") == kind
    ]


def published(actions: list[Action]) -> list[GroupState]:
    return [action.state for action in actions if isinstance(action, Publish)]


def running(made: Membership, where: str = "aabb") -> Membership:
    """Brings a group of len(where) ranks, one letter a node, to running."""
    for rank, node in enumerate(where):
        made.enter(entrant(rank, node, len(where)), 0.0)
    for node in dict.fromkeys(where):
        made.opened(node, made.epoch, "", 0.0)
    assert made.stage is Stage.RUNNING
    return made


def test_an_epoch_opens_only_with_all_ranks_and_starts_only_with_all_nodes() -> None:
    made = group("a", "b")
    for rank in (3, 1, 2):
        actions = made.enter(entrant(rank, "ab"[rank // 2]), 0.0)
        assert not sent(actions, "open")
    opens = sent(made.enter(entrant(0), 0.0), "open")
    assert [node for node, _ in opens] == ["a", "b"]
    plan = opens[0][1].open
    assert [info.rank for info in plan.ranks] == [0, 1, 2, 3]
    assert [info.node for info in plan.ranks] == [0, 0, 1, 1]
    assert {message.open.uid for _, message in opens} == {UID}
    assert not plan.dissemination
    assert not sent(made.opened("a", 1, "", 0.0), "start")
    actions = made.opened("b", 1, "", 0.0)
    assert [node for node, _ in sent(actions, "start")] == ["a", "b"]
    assert published(actions)[0].phase == "Ready"
    assert [part.ranks for part in published(actions)[0].nodes] == ["0-1", "2-3"]


def test_how_barriers_are_made_is_the_same_on_every_node() -> None:
    limits = Limits(join_s=10.0, dissemination=True)
    made = Membership("ns/train", 0, limits, UID)
    for node in "ab":
        made.attach(node, f"{node}:1", 0)
    made.enter(entrant(0, "a", 2), 0.0)
    opens = sent(made.enter(entrant(1, "b", 2), 0.0), "open")
    assert [message.open.dissemination for _, message in opens] == [True, True]


def test_a_duplicate_rank_is_refused_and_both_pods_are_named() -> None:
    made = group("a", "b")
    made.enter(entrant(1, "a", pod="ns/first"), 0.0)
    ((node, message),) = sent(made.enter(entrant(1, "b", pod="ns/second"), 0.0), "refused")
    assert node == "b"
    assert message.refused.code == "duplicate-rank"
    assert "ns/first on node a" in message.refused.message
    assert "ns/second on node b" in message.refused.message


def test_another_world_size_is_refused_and_both_pods_are_named() -> None:
    made = group("a", "b")
    made.enter(entrant(0, "a", world=4, pod="ns/first"), 0.0)
    actions = made.enter(entrant(1, "b", world=8, pod="ns/second"), 0.0)
    refused = sent(actions, "refused")[0][1].refused
    assert refused.code == "world-size"
    assert "ns/first" in refused.message
    assert "ns/second" in refused.message


def test_a_rank_outside_the_world_begins_no_epoch() -> None:
    made = group("a")
    assert sent(made.enter(entrant(4, world=4), 0.0), "refused")[0][1].refused.code == "rank"
    assert made.stage is Stage.IDLE


def test_the_join_timeout_names_the_missing_ranks_and_the_next_epoch_is_another() -> None:
    made = group("a", "b")
    made.enter(entrant(0, "a"), 0.0)
    made.enter(entrant(2, "b"), 1.0)
    assert made.tick(9.9) == []
    actions = made.tick(10.0)
    refused = {m.refused.rank: m.refused for _, m in sent(actions, "refused")}
    assert set(refused) == {0, 2}
    assert refused[0].code == "join-timeout"
    assert "ranks 1,3 of 4" in refused[0].message
    assert published(actions)[-1].phase == "Failed"
    made.enter(entrant(0, "a"), 11.0)
    assert made.epoch == 2


def test_a_lost_rank_fails_the_epoch_everywhere_and_names_rank_pod_and_node() -> None:
    made = running(group("a", "b"))
    actions = made.lost("b", 1, 3, "its process ended", 0.0)
    fails = sent(actions, "fail")
    assert [node for node, _ in fails] == ["a", "b"]
    reason = fails[0][1].fail.reason
    assert "rank 3 (ns/pod-3 on node b) was lost: its process ended" in reason
    assert published(actions)[-1].reason == reason


def test_a_lost_agent_fails_the_epoch_and_names_node_and_ranks() -> None:
    made = running(group("a", "b"))
    ((node, message),) = sent(made.detach("b", "reset", 0.0), "fail")[:1]
    assert node == "a"
    assert "node b (ranks 2-3) was lost: reset" in message.fail.reason


def test_a_node_whose_ranks_have_left_may_go() -> None:
    made = running(group("a", "b"))
    for rank in (2, 3):
        made.leaving("b", 1, rank, 0.0)
    for _ in range(2):
        made.quiesced("a", 1, 0.0)
        made.quiesced("b", 1, 0.0)
    assert not sent(made.detach("b", "done", 0.0), "fail")
    assert made.stage is Stage.RUNNING


def test_a_node_cannot_speak_for_the_ranks_of_another() -> None:
    made = running(group("a", "b"))
    assert made.lost("a", 1, 3, "a lie", 0.0) == []
    assert made.leaving("a", 1, 3, 0.0) == []
    assert made.withdraw("a", 3, 0.0) == []
    assert made.stage is Stage.RUNNING


def test_words_of_an_old_epoch_change_nothing() -> None:
    made = running(group("a", "b"))
    made.lost("b", 1, 3, "gone", 0.0)
    running(made)
    assert made.epoch == 2
    assert made.lost("b", 1, 3, "late", 0.0) == []
    assert made.broken("b", 1, "late", 0.0) == []
    assert made.leaving("b", 1, 3, 0.0) == []
    assert made.stage is Stage.RUNNING


def test_a_rank_that_comes_while_others_run_waits_for_the_next_epoch() -> None:
    made = running(group("a"), "aa")
    made.leaving("a", 1, 0, 0.0)
    made.quiesced("a", 1, 0.0)
    assert made.enter(entrant(0, "a", 2, pod="ns/again"), 0.0) == []
    refused = sent(made.enter(entrant(1, "a", 2), 0.0), "refused")
    assert refused[0][1].refused.code == "duplicate-rank"
    made.leaving("a", 1, 1, 0.0)
    assert (made.stage, made.epoch) == (Stage.FORMING, 2)


def test_a_failed_node_while_opening_fails_the_epoch() -> None:
    made = group("a", "b")
    for rank, node in enumerate("aabb"):
        made.enter(entrant(rank, node), 0.0)
    actions = made.opened("b", 1, "no route", 0.0)
    assert "node b could not connect with the group: no route" in published(actions)[-1].reason


def test_a_node_that_never_opens_or_quiesces_is_named_when_the_time_is_over() -> None:
    made = group("a", "b")
    for rank, node in enumerate("aabb"):
        made.enter(entrant(rank, node), 0.0)
    made.opened("a", 1, "", 0.0)
    assert "node(s) b did not connect" in published(made.tick(5.0))[-1].reason
    running(made)
    made.leaving("a", 2, 0, 0.0)
    made.quiesced("a", 2, 0.0)
    assert "node(s) b did not let rank 0 go" in published(made.tick(3.0))[-1].reason


def test_a_group_whose_ranks_all_withdrew_does_not_stay_forming() -> None:
    made = group("a")
    made.enter(entrant(0), 0.0)
    actions = made.withdraw("a", 0, 0.0)
    assert [state.phase for state in published(actions)] == ["Failed"]
    assert (made.stage, made.deadline) == (Stage.IDLE, None)


def test_random_leaves_let_every_rank_go_once_and_complete_the_epoch() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        where = "".join(rng.choice("abc") for _ in range(rng.randint(1, 9)))
        made = running(group("a", "b", "c"), where)
        inbox: list[tuple[str, int]] = [(node, rank) for rank, node in enumerate(where)]
        rng.shuffle(inbox)
        owed: list[str] = []
        gone: list[int] = []
        phases: list[str] = []

        def take(actions: list[Action]) -> None:
            owed.extend(node for node, _ in sent(actions, "ranks_left"))  # noqa: B023
            for _, message in sent(actions, "leave_done"):
                gone.extend(message.leave_done.ranks)  # noqa: B023
            phases.extend(state.phase for state in published(actions))  # noqa: B023

        while inbox or owed:
            if inbox and (not owed or rng.random() < 0.5):
                node, rank = inbox.pop()
                take(made.leaving(node, 1, rank, 0.0))
            else:
                take(made.quiesced(owed.pop(rng.randrange(len(owed))), 1, 0.0))
        assert sorted(gone) == list(range(len(where))), f"seed {seed}: {where}"
        assert phases == ["Completed"], f"seed {seed}"
        assert made.stage is Stage.IDLE
