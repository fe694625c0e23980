"""Whose agent is replaced when: no group ends by it before its time, and every update ends."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from epfabric_crds import EPFabric, EPFabricNode
from epfabric_operator.agentpods import agent_pod
from epfabric_operator.assignment import assign
from epfabric_operator.update import CORDON, PENDING, Update, cordon_of, decide
from epfabric_operator.world import AgentPod, Agents, World
from unit.operator.builders import NOW, condition, epnode, fabric, node, world

OLD = "2026-01-01T00:00:00Z"  # a day before NOW


def pod(name: str, *, outdated: bool = True, **more: Any) -> AgentPod:
    return AgentPod(f"/pods/a-{name}", f"a-{name}", f"pod-{name}", name, outdated, **more)


def epn(name: str, *groups: str, seen: int = 1, **more: Any) -> EPFabricNode:
    """A node whose agent is well and has these groups."""
    conditions = [condition("TransportReady")]
    if since := more.pop("since", None):
        conditions.append(condition(PENDING) | {"lastTransitionTime": since})
    made = epnode(
        name,
        sessions=len(groups),
        groups=list(groups),
        observedGeneration=seen,
        agent={"podUid": more.pop("says", f"pod-{name}")},
        conditions=conditions,
    )
    return replace(made, spec=replace(made.spec, cordon=more.pop("cordon", None)))


def seen(moe: EPFabric, *things: AgentPod | EPFabricNode, **more: Any) -> World:
    epnodes = [t for t in things if isinstance(t, EPFabricNode)]
    pods = tuple(t for t in things if isinstance(t, AgentPod))
    names = sorted({e.metadata.name for e in epnodes} | {p.node for p in pods})
    ages = dict.fromkeys([e.metadata.name for e in epnodes], 1.0)
    return world(
        moe,
        *(node(name, pool="moe", of="moe") for name in names),
        *epnodes,
        agents=Agents(pods, settled=more.pop("settled", True)),
        lease_ages_s={**ages, **more.pop("ages", {})},
        **more,
    )


def decided(moe: EPFabric, there: World, now: datetime.datetime = NOW) -> Update:
    return decide(moe, assign("moe", there).mine, there, now)


def gone(update: Update) -> list[str]:
    return [pod.node for pod in update.replace]


def test_where_no_agent_is_older_nothing_happens() -> None:
    moe = fabric()
    assert decided(moe, seen(moe, epn("a", "ns/g"))) == Update()
    assert decided(moe, seen(moe, epn("a"), pod("a", outdated=False))) == Update()


def test_an_idle_node_is_cordoned_first_and_replaced_once_its_agent_knows() -> None:
    moe = fabric()
    first = decided(moe, seen(moe, epn("a"), pod("a")))
    assert (gone(first), first.cordons) == ([], {"a": CORDON})
    unseen = decided(moe, seen(moe, epn("a", cordon=CORDON, seen=0), pod("a")))
    assert gone(unseen) == []
    known = decided(moe, seen(moe, epn("a", cordon=CORDON), pod("a")))
    assert gone(known) == ["a"]


def test_a_session_that_came_in_before_the_cordon_keeps_its_agent() -> None:
    moe = fabric()
    update = decided(moe, seen(moe, epn("a", "ns/g", cordon=CORDON), pod("a")))
    assert gone(update) == []
    assert update.pending["a"].reason == "GroupRunning"


def test_a_node_of_a_running_group_waits_and_says_since_when_and_what_next() -> None:
    moe = fabric()
    update = decided(moe, seen(moe, epn("a", "ns/g", since=OLD), pod("a")))
    assert gone(update) == []
    assert update.cordons == {"a": CORDON}
    told = update.pending["a"]
    assert told.status == "True"
    for word in (OLD, "ns/g", "when it has ended", "spec.update.deadline"):
        assert word in told.message
    assert "ns/g" in update.summary.message


def test_an_agent_that_coordinates_a_masked_group_without_ranks_of_its_own_waits() -> None:
    moe = fabric()
    there = seen(moe, epn("a", "ns/g", cordon=CORDON), pod("a"))
    status = replace(there.epnodes["a"].status, sessions=0)
    there = replace(there, epnodes={"a": replace(there.epnodes["a"], status=status)})
    assert gone(decided(moe, there)) == []


def test_the_deadline_takes_all_nodes_of_the_group_together() -> None:
    moe = fabric(update={"deadline": "23h"})
    late = "2026-01-01T12:00:00Z"
    there = seen(
        moe,
        epn("a", "ns/g", since=OLD), epn("b", "ns/g", "ns/h", since=late), epn("c", "ns/h"),
        epn("d", "ns/i", since=late),
        *map(pod, "abcd"),
    )  # fmt: skip
    assert gone(decided(moe, there)) == ["a", "b", "c"]
    earlier = NOW - datetime.timedelta(hours=2)
    assert gone(decided(moe, there, earlier)) == []
    assert gone(decided(fabric(), there)) == [], "without a deadline they wait for ever"


def test_no_more_than_max_unavailable_are_down_at_once() -> None:
    moe = fabric(update={"maxUnavailable": 2})
    idle = [epn(name, cordon=CORDON) for name in "abcd"]
    assert gone(decided(moe, seen(moe, *idle, *map(pod, "abcd")))) == ["a", "b"]
    coming = seen(
        moe, *idle[1:], epn("a", says="pod-of-before"), pod("a", outdated=False), *map(pod, "bcd")
    )
    assert gone(decided(moe, coming)) == ["b"], "the new agent of a has said nothing yet"
    going = seen(moe, *idle, pod("a", going=True), pod("b", going=True), *map(pod, "cd"))
    assert gone(decided(moe, going)) == []


def test_a_node_that_is_down_takes_nobodys_turn() -> None:
    moe = fabric()
    there = seen(
        moe, epn("a"), epn("b", cordon=CORDON), pod("a", outdated=False), pod("b"),
        ages={"a": 500.0},
    )  # fmt: skip
    assert gone(decided(moe, there)) == []
    assert gone(decided(moe, replace(there, down=frozenset("a")))) == ["b"]


def test_idle_nodes_whose_turn_has_not_come_stay_open() -> None:
    moe = fabric()
    update = decided(moe, seen(moe, epn("a"), epn("b"), pod("a"), pod("b")))
    assert update.cordons == {"a": CORDON}
    turn = decided(moe, seen(moe, epn("a"), epn("b", cordon=CORDON), pod("a"), pod("b")))
    assert (update.cordons, turn.cordons) == ({"a": CORDON}, {"b": CORDON})
    assert gone(turn) == ["b"], "the turn that was given stays"


def test_a_new_agent_that_crashes_stops_the_update() -> None:
    moe = fabric(update={"maxUnavailable": 5, "deadline": "1m"})
    crashing = pod("a", outdated=False, trouble="CrashLoopBackOff")
    there = seen(
        moe, epn("a", says="pod-of-before"), epn("b", cordon=CORDON), epn("c", "ns/g", since=OLD),
        crashing, pod("b"), pod("c"),
    )  # fmt: skip
    update = decided(moe, there)
    assert (gone(update), update.cordons) == ([], {})
    assert "CrashLoopBackOff" in update.stopped
    assert update.pending["c"].reason == update.summary.reason == "Stopped"
    assert OLD in update.pending["c"].message, "how long it waits is not forgotten"


def test_what_is_set_back_replaces_the_crashing_agents_at_once_and_no_other() -> None:
    moe = fabric()
    there = seen(
        moe, epn("a", "ns/old", says="pod-of-before"), epn("b"), epn("c"),
        pod("a", trouble="CrashLoopBackOff"), pod("b", trouble="ErrImagePull"),
        pod("c", outdated=False),
    )  # fmt: skip
    assert gone(decided(moe, there)) == ["a", "b"]


def test_an_old_agent_that_was_started_often_in_its_life_keeps_its_group() -> None:
    moe = fabric()
    running = {"running": {"startedAt": OLD}}
    for state, trouble in ((running, False), ({"terminated": {"exitCode": 1}}, True)):
        made = agent_pod(
            {
                "metadata": {"name": "a", "uid": "pod-a", "labels": {}},
                "spec": {"nodeName": "a"},
                "status": {
                    "containerStatuses": [
                        {"name": "sidecar", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
                        {"name": "agent", "restartCount": 9, "state": state},
                    ]
                },
            },
            "/pods/a",
            {"new"},
        )
        assert made.outdated
        assert bool(made.trouble) is trouble
        update = decided(moe, seen(moe, epn("a", "ns/g", cordon=CORDON), made))
        assert gone(update) == (["a"] if trouble else [])


def test_a_new_agent_that_was_started_often_long_ago_stops_nothing() -> None:
    moe = fabric()
    restless = pod("a", outdated=False, restless=True)
    well = decided(moe, seen(moe, epn("a"), epn("b", cordon=CORDON), restless, pod("b")))
    assert (well.stopped, gone(well)) == ("", ["b"])
    ill = decided(moe, seen(moe, epn("a", says="pod-of-before"), restless, pod("b")))
    assert "again and again" in ill.stopped


def test_after_an_outage_of_the_api_server_nobody_is_taken_for_idle() -> None:
    """All Leases are old then, and statuses are from before: groups may have begun since."""
    moe = fabric(update={"maxUnavailable": 9})
    ages = dict.fromkeys("abc", 500.0)
    told = [epn(n, cordon=CORDON) for n in "abc"]
    update = decided(moe, seen(moe, *told, *map(pod, "abc"), ages=ages))
    assert gone(update) == []
    assert "a, b, c" in update.summary.message


def test_a_node_that_was_not_ready_before_holds_nobody_up() -> None:
    moe = fabric()
    broken = epnode(
        "a", agent={"podUid": "pod-a"}, conditions=[condition("Ready", "False")]
    )  # since OLD
    for created, turn in (("2026-01-01T01:00:00Z", ["b"]), ("2025-12-31T00:00:00Z", [])):
        new = pod("a", outdated=False, created=created)
        update = decided(moe, seen(moe, broken, epn("b", cordon=CORDON), new, pod("b")))
        assert gone(update) == turn
    assert "new agents of a" in update.summary.message


def test_a_pause_touches_nobody() -> None:
    moe = fabric(update={"paused": True, "deadline": "1m"})
    update = decided(moe, seen(moe, epn("a", "ns/g", since=OLD), epn("b"), pod("a"), pod("b")))
    assert (gone(update), update.cordons) == ([], {})
    assert update.summary.reason == "Paused"


def test_nothing_goes_before_the_daemonset_would_make_the_new_one() -> None:
    moe = fabric()
    there = seen(moe, epn("a", cordon=CORDON), pod("a"), settled=False)
    assert gone(decided(moe, there)) == []


@pytest.mark.parametrize("text", ["", "rack is being moved"])
def test_an_administrators_cordon_outlives_every_update(text: str) -> None:
    theirs = replace(node("a"), cordon=text)
    for update in (Update(), Update(cordons={"a": CORDON})):
        assert "administrator" in (cordon_of(theirs, update) or "")
        assert text in (cordon_of(theirs, update) or "")
    assert cordon_of(node("a"), Update()) is None


def test_whatever_happens_no_group_ends_before_its_time_and_every_update_ends() -> None:
    """A cluster that is driven by decide() alone, with groups that come and go."""
    for seed in range(40):
        print(f"seed {seed}")
        rng = random.Random(seed)
        moe = fabric(update={"maxUnavailable": rng.randint(1, 3)})
        names = [f"n{i}" for i in range(rng.randint(1, 8))]
        old = set(names)
        groups: dict[str, list[str]] = {}
        told: Mapping[str, str] = {}
        for i in range(rng.randint(0, 4)):
            groups[f"ns/g{i}"] = rng.sample(names, rng.randint(1, len(names)))
        for step in range(200):
            here = {n: [g for g, on in groups.items() if n in on] for n in names}
            # One that is silent shows what it said last, which may be wrong by now.
            silent = {n for n in names if step < 150 and rng.random() < 0.2}
            told_of = {n: [] if n in silent else here[n] for n in names}
            things = [epn(n, *told_of[n], cordon=told.get(n)) for n in names]
            pods = [pod(n, outdated=n in old, restless=rng.random() < 0.1) for n in names]
            update = decided(moe, seen(moe, *things, *pods, ages=dict.fromkeys(silent, 99.0)))
            for name in gone(update):
                assert not here[name], f"seed {seed}, step {step}: {name} ended {here[name]}"
                old.discard(name)
            assert len(gone(update)) <= moe.spec.update.max_unavailable
            told = update.cordons
            if not old:
                break
            if groups and rng.random() < 0.2:
                del groups[rng.choice(sorted(groups))]
            free = [n for n in names if n not in told]
            if free and rng.random() < 0.3 and step < 100:
                groups[f"ns/more{step}"] = rng.sample(free, rng.randint(1, len(free)))
        assert not old, f"seed {seed}: {old} never updated"
