"""Agents hand descriptors among ranks of one node, epoch and group, to nobody else, and keep none.

There is no GPU here: a memfd stands in for a descriptor of GPU memory (agent.sharing).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import epfabric
import pytest
from agent.sharing import Maker, Memfd, connect, each, fails, files, find, joined, offer
from agent.two_agents import ROOT, WAIT_S, TwoAgents, says, two_agents
from epfabric_agent.session.quota import MAX_POD_DESCRIPTORS
from epfabric_agent.session.sharing import MAX_OFFERS
from harness.process import wait_until

RANK = Path(__file__).with_name("sharing_rank.py")


@pytest.fixture(scope="module")
def pair() -> Iterator[TwoAgents]:
    with two_agents(groups=("moe", "other"), joinTimeout="20s", timeout="8s") as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_kept(pair: TwoAgents) -> Iterator[None]:
    yield
    for node in pair.agents:
        holds(pair, node, 0)


def holds(pair: TwoAgents, node: str, count: int) -> None:
    """Descriptors of the stand-in, once the agent has closed what came with requests."""
    agent = pair.agents[node]
    wait_until(lambda: files(agent.pid) == count, WAIT_S, f"{count} descriptors", agent)


def refused(code: str, call: Callable[[], object]) -> str:
    with pytest.raises(epfabric.SessionError) as caught:
        call()
    assert caught.value.code == code, caught.value
    return str(caught.value)


def test_processes_get_each_other_s_memory_on_their_node_alone(pair: TwoAgents) -> None:
    near = {"a": "0,1", "b": "2,3"}
    ranks = [
        pair.processes.start(
            f"sharing-{rank}",
            [sys.executable, RANK, str(pair.socket(node)), str(rank), "4", near[node]],
            env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        )
        for rank, node in enumerate("aabb")
    ]
    for rank in ranks:
        assert rank.wait(WAIT_S) == 0, rank.tail()
        assert rank.tail().count("refused: it is not on node") == 2, rank.tail()


def test_a_rank_of_another_group_or_epoch_gets_nothing(pair: TwoAgents) -> None:
    memory = Memfd.made()
    with joined(pair, "aa") as mine, joined(pair, "aa", "other") as strangers:
        offer(mine[0], "memory", memory)
        refused("not-offered", lambda: find(strangers[1], 0, "memory"))
        each(mine, "close")
        late = connect(pair, "aa")
        refused("bad-state", lambda: find(late[1], 0, "memory"))
        offer(late[0], "memory", memory)
        refused("bad-state", lambda: find(late[1], 0, "memory"))
        each(late, "join")
        assert find(late[1], 0, "memory").inode == memory.inode
        refused("not-offered", lambda: find(strangers[1], 0, "memory"))
        each(late, "close")


def test_what_is_offered_later_is_waited_for_and_what_is_withdrawn_is_gone(pair: TwoAgents) -> None:
    memory = Memfd.made()
    with joined(pair, "aa") as (owner, peer):
        found: list[Memfd] = []
        asking = threading.Thread(target=lambda: found.append(find(peer, 0, "late", WAIT_S)))
        asking.start()
        refused("not-offered", lambda: find(owner, 1, "late", 0.3))
        offer(owner, "late", memory)
        asking.join(WAIT_S)
        assert found[0].inode == memory.inode
        refused("bad-state", lambda: offer(owner, "late", memory))
        owner.broker.withdraw("late")
        refused("not-offered", lambda: owner.broker.withdraw("late"))
        refused("not-offered", lambda: find(peer, 0, "late"))
        found[0].write(5, 77)  # whoever has it keeps it
        assert memory.read(5) == 77
        each([owner, peer], "close")


def test_descriptors_are_bounded_and_given_back(pair: TwoAgents) -> None:
    memory = Memfd.made()
    with joined(pair, "aaa") as sessions:
        for session in sessions[:2]:
            for number in range(MAX_OFFERS):
                offer(session, f"memory-{number}", memory)
        assert 2 * MAX_OFFERS == MAX_POD_DESCRIPTORS
        holds(pair, "a", MAX_POD_DESCRIPTORS)
        assert str(MAX_OFFERS) in refused("quota", lambda: offer(sessions[0], "more", memory))
        text = refused("quota", lambda: offer(sessions[2], "more", memory))
        assert str(MAX_POD_DESCRIPTORS) in text
        sessions[0].broker.withdraw("memory-3")
        offer(sessions[2], "more", memory)
        refused("quota", lambda: offer(sessions[0], "memory-3", memory))
        assert find(sessions[1], 2, "more").inode == memory.inode
        each(sessions, "close")
    with joined(pair, "aa") as again:
        offer(again[0], "memory", memory)
        each(again, "close")


def test_only_what_may_be_memory_is_taken(pair: TwoAgents, tmp_path: Path) -> None:
    fds = [
        os.open(tmp_path, os.O_RDONLY),
        os.open(tmp_path, os.O_PATH),
        os.open("/dev/null", os.O_PATH),
        *os.pipe(),
        *(end.detach() for end in socket.socketpair()),
    ]
    with joined(pair, "aa") as (owner, peer):
        for fd in fds:
            text = refused("bad-fd", partial(owner.broker.offer, "memory", fd, 4096))
            assert "cuMemExportToShareableHandle" in text
            os.close(fd)
        with pytest.raises(ValueError, match="bytes"):
            owner.broker.offer("memory", 0, 4095)
        refused("not-offered", lambda: find(peer, 0, "memory"))
        memory = Memfd.made()
        offer(owner, "memory", memory)
        assert find(peer, 0, "memory").inode == memory.inode
        each([owner, peer], "close")


def test_many_at_once_get_what_they_asked_for(pair: TwoAgents) -> None:
    with joined(pair, "aaaa") as sessions:
        memories = [Memfd.made() for _ in sessions]
        wrong: list[object] = []

        def exchange(rank: int) -> None:
            try:
                for turn in range(12):
                    name = sessions[rank].broker.next_name()
                    offer(sessions[rank], name, memories[rank], f"{rank} {turn}")
                    for other in range(len(sessions)):
                        found = sessions[rank].broker.find(other, name, WAIT_S)
                        same = Memfd(found.fd, found.size_bytes)
                        os.close(found.fd)
                        if found.note != f"{other} {turn}" or same.inode != memories[other].inode:
                            wrong.append((rank, other, turn, found.note))
                        same.close()
                    sessions[rank].barrier()
                    sessions[rank].broker.withdraw(name)
            except epfabric.SessionError as error:
                wrong.append(error)

        threads = [threading.Thread(target=exchange, args=[rank]) for rank in range(len(sessions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert not wrong
        each(sessions, "close")


def test_who_waits_for_a_rank_that_leaves_or_is_lost_is_told(pair: TwoAgents) -> None:
    for end, codes in (
        ("close", ("not-offered",)),
        ("abort", ("not-offered", "group-failed", None)),
    ):
        with joined(pair, "aaa") as sessions:
            said: list[epfabric.SessionError] = []

            def wait(
                said: list[epfabric.SessionError] = said, peer: epfabric.Session = sessions[1]
            ) -> None:
                try:
                    find(peer, 0, "never", 600.0)
                except epfabric.SessionError as error:
                    said.append(error)

            waiting = threading.Thread(target=wait)
            waiting.start()
            getattr(sessions[0], end)()
            waiting.join(WAIT_S)
            assert not waiting.is_alive()
            assert said[0].code in codes, (end, said[0], said[0].code)


def test_a_restarted_agent_knows_of_nothing_and_serves_anew(pair: TwoAgents) -> None:
    memory = Memfd.made()
    with joined(pair, "aa") as before:
        offer(before[0], "memory", memory)
        had = find(before[1], 0, "memory")
        pair.agents["a"].signal(signal.SIGKILL)
        pair.agents["a"].wait(WAIT_S)
        with pytest.raises(epfabric.SessionError, match=r"node a|closed the session"):
            find(before[1], 0, "memory", WAIT_S)
        had.write(3, 33)
        assert memory.read(3) == 33
    pair.agents["a"] = pair.start("a", name="a-again")
    wait_until(lambda: pair.listens("a"), WAIT_S, "agent a", pair.agents["a"])
    with joined(pair, "aa") as after:
        refused("not-offered", lambda: find(after[1], 0, "memory"))
        offer(after[0], "memory", memory)
        assert find(after[1], 0, "memory").inode == memory.inode
        each(after, "close")


class Other(Maker):
    """Reaches something else than what it was given."""

    def reach(self, fd: int, size_bytes: int) -> Memfd:
        return Memfd.made()


@contextmanager
def tried(pair: TwoAgents, makers: dict[int, Maker]) -> Iterator[list[epfabric.Session]]:
    """Three ranks on node a, one on b, once they have joined; the memory of some stands in for that
    of a GPU."""
    sessions = connect(pair, "aaab")
    try:
        for rank, maker in makers.items():
            sessions[rank]._maker = maker
        each(sessions, "join")
        yield sessions
        each(sessions, "close")
    finally:
        for session in sessions:
            session.abort()


def test_ranks_try_at_join_what_they_reach_and_say_so(pair: TwoAgents) -> None:
    with tried(pair, {rank: Maker() for rank in range(4)}) as sessions:
        assert [one.nvlink[0] for one in sessions] == ["posix_fd"] * 3 + ["none"]
        assert "2 other rank(s); no fabric handles: they are memfds" in sessions[0].nvlink[1]
        assert "no other rank of this node" in sessions[3].nvlink[1]
        assert says(pair.agents["a"], "nvlink posix_fd: tried by ranks 0-2; rank 0: wrote to")
        assert says(pair.agents["b"], "nvlink none: no other rank of the group is on this node")
        assert files(pair.agents["a"].pid) == 0, "what was tried is kept"


def test_a_rank_that_reaches_nothing_says_why_and_the_group_opens(pair: TwoAgents) -> None:
    with tried(pair, {0: Maker(), 1: Maker(fails), 2: Other()}) as sessions:
        assert sessions[0].nvlink[0] == "posix_fd"
        assert sessions[1].nvlink == (
            "none",
            "the GPU memory of rank 0 cannot be reached: CUDA: some reason",
        )
        assert sessions[2].nvlink == ("none", "what is reached is not the GPU memory of rank 0")
        assert says(
            pair.agents["a"], "nvlink none: rank 1: the GPU memory of rank 0 cannot be reached"
        )


def test_ranks_without_a_gpu_have_nothing_to_try(pair: TwoAgents) -> None:
    with tried(pair, {0: Maker()}) as sessions:
        assert [one.nvlink[0] for one in sessions] == ["none"] * 4
        assert sessions[1].nvlink[1] == "this process uses no GPU"
        assert says(
            pair.agents["a"], "nvlink none: rank 0: no other rank of this node offers GPU memory"
        )


def test_a_rank_that_is_lost_while_it_tries_fails_the_group_at_once(pair: TwoAgents) -> None:
    sessions = connect(pair, "aa")
    sessions[0]._maker, sessions[1]._maker = Maker(), Maker(sessions[1].abort)
    said: list[BaseException] = []

    def join(session: epfabric.Session) -> None:
        try:
            session.join()
        except epfabric.SessionError as error:
            said.append(error)

    threads = [threading.Thread(target=join, args=[session]) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(said) == 2
    assert any("rank 1 (local" in str(error) and "lost" in str(error) for error in said), said
    each(sessions, "abort")
    with joined(pair, "aa") as again:
        each(again, "close")
