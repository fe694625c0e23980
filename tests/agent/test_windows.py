"""Windows of a buffer that agents broker: every rank reaches every one's, or all say who does not.

Memfds stand in for GPU memory (agent.sharing); tests/gpu/test_brokered.py has the real one.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import epfabric
import pytest
from agent.sharing import Maker, Memfd, each, fails, files, joined, offer
from agent.two_agents import WAIT_S, TwoAgents, two_agents
from epfabric import layout
from epfabric.buffer.attached import Attached, Brokered
from epfabric.buffer.members import members_of
from epfabric_agent.session.sharing import MAX_OFFERS
from harness.process import wait_until

SIZE = 100_000
OTHER = Maker(device="two")


@pytest.fixture(scope="module")
def pair() -> Iterator[TwoAgents]:
    with two_agents(joinTimeout="20s", timeout="8s") as made:
        yield made


def windows(
    sessions: list[epfabric.Session],
    makers: list[Maker],
    neighbours: list[tuple[int, ...]] | None = None,
) -> list[Brokered | epfabric.SessionError]:
    def make(session: epfabric.Session) -> Brokered | epfabric.SessionError:
        try:
            near = neighbours[session.rank] if neighbours is not None else None
            return Brokered(session, SIZE, makers[session.rank], near)
        except epfabric.SessionError as error:
            return error

    with ThreadPoolExecutor(len(sessions)) as pool:
        return [made.result(WAIT_S) for made in [pool.submit(make, one) for one in sessions]]


def agents_hold_nothing(pair: TwoAgents) -> None:
    for agent in pair.agents.values():
        for kind in ("memfd:stand-in", "memfd:epfabric-note"):
            wait_until(
                lambda pid=agent.pid, kind=kind: files(pid, kind) == 0,  # type: ignore[misc]
                WAIT_S,
                f"the agent to let {kind} go",
                agent,
            )


def memory(window: object, rank: int) -> Memfd:
    """What the window has of that rank."""
    assert isinstance(window, Brokered)
    known = [window.own, *window._imported]
    found = next(one for one in known if one.address == window.addresses[rank])
    assert isinstance(found, Memfd)
    return found


def test_every_rank_reaches_every_one_s_and_the_agent_lets_go(pair: TwoAgents) -> None:
    with joined(pair, "aaa") as sessions:
        for _ in range(3):
            made = windows(sessions, [Maker(), OTHER, Maker()])
            agents_hold_nothing(pair)
            for rank, window in enumerate(made):
                for other in range(3):
                    memory(window, other).write(1 + rank, 100 * rank + other)
            for rank, window in enumerate(made):
                own = memory(window, rank)
                assert own.size_bytes >= SIZE
                assert [own.read(1 + other) for other in range(3)] == [rank, 100 + rank, 200 + rank]
                assert isinstance(window, Brokered)
                assert window.sharers == (2, 1, 2)[rank]
                assert sessions[rank].nvlink[0] == "posix_fd"
                window.close()
                window.close()
                own.close()
        each(sessions, "close")


def test_what_one_rank_cannot_reach_is_an_error_of_all_and_the_group_goes_on(
    pair: TwoAgents,
) -> None:
    with joined(pair, "aaa") as sessions:
        for error in windows(sessions, [Maker(), Maker(fails), Maker()]):
            assert isinstance(error, epfabric.SessionError)
            assert str(error).startswith("rank 1: the GPU memory of rank 0 cannot be reached: CUDA")
        agents_hold_nothing(pair)
        assert {session.nvlink[0] for session in sessions} == {"none"}
        assert not any(isinstance(one, Exception) for one in windows(sessions, [Maker()] * 3))
        each(sessions, "close")


def test_ranks_that_are_not_reached_are_left_to_the_agents_by_both_sides(pair: TwoAgents) -> None:
    with joined(pair, "aabb") as sessions:
        neighbours: list[tuple[int, ...]] = [(0, 1), (0, 1), (2, 3), (2, 3)]
        for maker, reached in ((Maker(), True), (Maker(fails), False)):
            made = windows(sessions, [Maker(), maker, Maker(), Maker()], neighbours)
            for rank, window in enumerate(made):
                assert isinstance(window, Brokered), window
                wanted = neighbours[rank] if reached or rank > 1 else (rank,)
                known = [other for other in range(4) if window.addresses[other]]
                assert known == list(wanted)
                assert window.sharers == 2  # of the GPU, also where its memory is not reached
                assert sessions[rank].nvlink[0] == ("posix_fd" if len(wanted) > 1 else "none")
                memory(window, rank).close()
                window.close()
        each(sessions, "close")


def test_a_window_of_a_rank_alone_on_its_node_says_nothing_of_other_ranks_memory(
    pair: TwoAgents,
) -> None:
    with joined(pair, "ab") as sessions:
        before = [session.nvlink for session in sessions]
        for window in windows(sessions, [Maker()] * 2, [(0,), (1,)]):
            assert isinstance(window, Brokered), window
            window.own.close()
            window.close()
        assert [session.nvlink for session in sessions] == before
        each(sessions, "close")


def test_a_rank_without_the_memory_is_not_waited_for_on_other_nodes(pair: TwoAgents) -> None:
    neighbours: list[tuple[int, ...]] = [(0, 1), (0, 1), (2, 3), (2, 3)]
    with joined(pair, "aabb") as sessions:
        makers = [Maker(), Poor(), Maker(), Maker()]
        for rank, error in enumerate(windows(sessions, makers, neighbours)):
            assert isinstance(error, epfabric.SessionError)
            assert rank == 1 or isinstance(error, epfabric.GroupFailed)
            assert rank != 1 or "out of memory" in str(error)
    agents_hold_nothing(pair)


def test_kernels_find_the_segments_where_the_session_says_and_the_process_its_first_ring(
    pair: TwoAgents,
) -> None:
    with joined(pair, "a") as sessions:
        (session,) = sessions
        loan, *segments = session.lend(5)
        magics = [ctypes.c_uint64.from_address(segment).value for segment in segments]
        assert magics == [layout.POD_MAGIC, layout.AGENT_MAGIC]
        assert len(loan.heads) == session.rings
        session.barrier()
        with pytest.raises(epfabric.SessionError, match="its kernels'"):
            session.ring(1)
        session.close()


class Poor(Maker):
    """Its GPU has no room."""

    def make(self, size_bytes: int) -> Memfd:
        raise RuntimeError("out of memory")


class Small(Maker):
    """Of a rank that asks for another size than the others."""

    def make(self, size_bytes: int) -> Memfd:
        return Memfd.made(4096)


@pytest.mark.parametrize(
    ("poor", "text"),
    [(Poor(), "rank 1: out of memory"), (Small(), "4096 bytes are there, not 100000")],
    ids=["none", "small"],
)
def test_a_rank_without_the_memory_is_an_error_of_all_and_the_group_goes_on(
    pair: TwoAgents, poor: Maker, text: str
) -> None:
    with joined(pair, "aaa") as sessions:
        held = files(os.getpid())
        for error in windows(sessions, [Maker(), poor, Maker()]):
            assert isinstance(error, epfabric.SessionError)
            assert text in str(error)
            assert "the GPU memory of rank 1 cannot be reached" in str(error)
        agents_hold_nothing(pair)
        assert files(os.getpid()) == held, "memory is kept of a window that was not made"
        assert not any(isinstance(one, Exception) for one in windows(sessions, [Maker()] * 3))
        each(sessions, "close")


def test_a_rank_that_cannot_say_what_is_wrong_is_not_waited_for(pair: TwoAgents) -> None:
    with joined(pair, "aaa") as sessions:
        memory = Memfd.made()
        for number in range(MAX_OFFERS):
            offer(sessions[1], f"other-{number}", memory)
        for rank, error in enumerate(windows(sessions, [Maker()] * 3)):
            assert isinstance(error, epfabric.SessionError)
            if rank == 1:
                assert str(MAX_OFFERS) in str(error)
            else:
                assert isinstance(error, epfabric.GroupFailed)
    agents_hold_nothing(pair)


def test_ranks_of_two_nodes_are_told_so(pair: TwoAgents) -> None:
    with joined(pair, "aab") as sessions:
        for error in windows(sessions, [Maker()] * 3):
            assert isinstance(error, epfabric.SessionError)
            assert "it is not on node" in str(error)
        agents_hold_nothing(pair)
        each(sessions, "close")


def test_a_rank_that_is_lost_meanwhile_is_named(pair: TwoAgents) -> None:
    with joined(pair, "aaa") as sessions:
        lost, held = Maker(sessions[1].abort), files(os.getpid())
        for rank, error in enumerate(windows(sessions, [Maker(), lost, Maker()])):
            assert isinstance(error, epfabric.SessionError)
            assert rank == 1 or "rank 1" in str(error), error
        assert files(os.getpid()) == held, "memory is kept of a window that was not made"
    agents_hold_nothing(pair)


def test_members_are_of_one_kind_and_a_session_has_joined(pair: TwoAgents) -> None:
    with joined(pair, "a") as (session,):
        members = members_of(None, None, session)
        assert (members.rank, members.size) == (0, 1)
        with pytest.raises(ValueError, match="only one of"):
            members_of(object(), None, session)
        each([session], "close")
    with pytest.raises(ValueError, match="is needed"):
        members_of(None, None, None)
    session = epfabric.connect(str(pair.socket("a")), 0, 1, timeout_s=WAIT_S)
    with pytest.raises(epfabric.SessionError, match="joined"):
        Attached(session)
    session.abort()
