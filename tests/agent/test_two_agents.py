"""Two real agents without Kubernetes: a group forms, exchanges, leaves, fails with its reason."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator

import pytest
from agent.two_agents import WAIT_S, TwoAgents, says, two_agents
from epfabric import messages
from harness.process import Process, wait_until

FAILED = 3


@pytest.fixture(scope="module")
def pair() -> Iterator[TwoAgents]:
    with two_agents(joinTimeout="6s") as made:
        yield made


def joined(ranks: list[Process]) -> None:
    for rank in ranks:
        wait_until(lambda r=rank: says(r, "joined"), WAIT_S, f"{rank.name} to join", rank)  # type: ignore[misc]


def test_four_ranks_exchange_and_leave_and_the_next_epoch_follows(pair: TwoAgents) -> None:
    before = epoch_of(pair, "first")
    assert epoch_of(pair, "second") == before + 1


def epoch_of(pair: TwoAgents, prefix: str) -> int:
    ranks = pair.ranks(prefix=prefix)
    for rank in ranks:
        assert rank.wait(WAIT_S) == 0, rank.tail()
    epochs = {int(rank.tail().split("joined ")[1].split()[0]) for rank in ranks}
    assert len(epochs) == 1
    return epochs.pop()


def test_a_killed_rank_fails_the_others_with_its_number_and_node(pair: TwoAgents) -> None:
    ranks = pair.ranks("stay", prefix="killed")
    joined(ranks)
    ranks[3].signal(signal.SIGKILL)
    for rank in ranks[:3]:
        assert rank.wait(WAIT_S) == FAILED, rank.tail()
        assert "rank 3 (local" in rank.tail()
        assert "on node b) was lost" in rank.tail()
    epoch_of(pair, "after-kill")


def test_missing_ranks_are_named_when_the_join_timeout_passes(pair: TwoAgents) -> None:
    ranks = [pair.rank("a", 0, 4, name="lone-0"), pair.rank("b", 2, 4, name="lone-2")]
    for rank in ranks:
        assert rank.wait(WAIT_S) == FAILED
        assert "join-timeout" in rank.tail()
        assert "ranks 1,3 of 4" in rank.tail()


def test_without_rank_0_a_rank_is_told_what_is_missing(pair: TwoAgents) -> None:
    rank = pair.rank("b", 1, 2, name="headless")
    assert rank.wait(WAIT_S) == FAILED
    assert "rank 0 has not attached" in rank.tail()


def rank_0_of_three(pair: TwoAgents, name: str) -> Process:
    """Attached when this returns, so that whoever comes next is the one to be refused."""

    def attached() -> int:
        return pair.agents["a"].log.read_text().count("rank 0 of local/moe")

    before = attached()
    rank = pair.rank("a", 0, 3, name=name)
    wait_until(lambda: attached() > before, WAIT_S, "rank 0", rank)
    return rank


def test_a_duplicate_rank_is_refused_over_two_nodes(pair: TwoAgents) -> None:
    first = rank_0_of_three(pair, "dup-0")
    one = pair.rank("a", 1, 3, name="dup-1")
    twin = pair.rank("b", 1, 3, name="dup-twin")
    for rank in (first, one, twin):
        assert rank.wait(WAIT_S) == FAILED, rank.tail()
    texts = one.tail() + twin.tail()
    assert "failed duplicate-rank" in texts
    assert "on node a" in texts
    assert "on node b" in texts


def test_another_world_size_is_refused_over_two_nodes(pair: TwoAgents) -> None:
    first = rank_0_of_three(pair, "world-0")
    other = pair.rank("b", 2, 5, name="world-other")
    for rank in (first, other):
        assert rank.wait(WAIT_S) == FAILED, rank.tail()
    assert "failed world-size" in other.tail()


def test_a_connection_that_misbehaves_harms_nobody(pair: TwoAgents) -> None:
    for packet in (b"{", b'{"type":"hello"}', b'{"type":"join"}', b"x" * 70000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.settimeout(WAIT_S)
            sock.connect(str(pair.socket("a")))
            sock.send(packet)
            answer = json.loads(sock.recv(messages.MAX_PACKET_BYTES))
            assert answer["ok"] is False
            assert answer["error"]["code"] in ("bad-request", "bad-state")
    epoch_of(pair, "unharmed")


def test_an_agent_with_a_core_still_heeds_signals_itself() -> None:
    """A library that libfabric loads would else take SIGTERM over, and end the agent with 1."""
    with two_agents() as fresh:
        for agent in fresh.agents.values():
            assert agent.stop() == 0, agent.tail()
            assert says(agent, "ending")


def test_a_second_agent_of_one_node_is_refused(pair: TwoAgents) -> None:
    second = pair.start("a", name="second-a")
    assert second.wait(WAIT_S) == 2
    assert "one agent per node" in second.tail()


@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_killed_agent_fails_its_ranks_and_the_group_by_name(victim: str) -> None:
    with two_agents() as pair:
        ranks = pair.ranks("stay")
        joined(ranks)
        pair.agents[victim].signal(signal.SIGKILL)
        for index, rank in enumerate(ranks):
            assert rank.wait(WAIT_S) == FAILED, rank.tail()
            assert f"node {victim}" in rank.tail()
            if "aabb"[index] != victim:
                assert re.search(r"was lost|lost ranks? [0-9,-]+ on node", rank.tail())
        pair.agents[victim] = pair.start(victim, name=f"{victim}-again")
        wait_until(lambda: pair.listens(victim), WAIT_S, "the agent", pair.agents[victim])
        epoch_of(pair, "again")
        for agent in pair.agents.values():
            assert agent.stop() == 0, agent.tail()


def test_an_agent_that_ends_in_order_tells_its_ranks_and_the_others() -> None:
    with two_agents() as pair:
        ranks = pair.ranks("stay")
        joined(ranks)
        assert pair.agents["b"].stop() == 0
        for rank in ranks:
            assert rank.wait(WAIT_S) == FAILED, rank.tail()
            assert "node b" in rank.tail()
