"""What a rank sees when its agent misbehaves: a bounded error that says what happened."""

from __future__ import annotations

import dataclasses
import fcntl
import gc
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import epfabric
import numpy as np
import pytest
from epfabric import layout, messages
from epfabric.failure import Failure
from epfabric.messages import Reply, Request
from epfabric.watch import Stillness

from .scripted_agent import ScriptedAgent

F_GET_SEALS = 1034


def connect(agent: ScriptedAgent, timeout_s: float = 20.0) -> epfabric.Session:
    return epfabric.connect(agent.path, rank=0, world_size=2, timeout_s=timeout_s)


def refused(code: str, message: str) -> Callable[[Request], Reply | None]:
    return lambda request: messages.ErrorReply(code=code, message=message)


def test_an_orderly_session_says_what_it_is(agent: ScriptedAgent) -> None:
    with connect(agent) as session:
        region = session.register(5000)
        region.array[:] = 7
        session.join()
        assert (session.node, session.group, session.epoch) == ("n7", "ns/g", 1)
        assert region.offset == 65536
        assert region.array.nbytes == 5000
        assert region.view(16, (2, 8), np.uint32).shape == (2, 8)
    assert agent.ended.wait(10)
    assert [r.TYPE for r in agent.requests] == ["hello", "register", "join", "leave"]
    status = os.fstat(agent.received_fds[0])
    assert status.st_size == 8192
    assert status.st_blocks * 512 == 8192, "the memfd has holes"
    assert fcntl.fcntl(agent.received_fds[0], F_GET_SEALS) == 0, "the agent seals it, not the pod"
    assert os.pread(agent.received_fds[0], 8192, 0) == b"\x07" * 5000 + b"\0" * 3192


def test_an_exception_ends_the_session_without_leave(agent: ScriptedAgent) -> None:
    def broken_rank() -> None:
        with connect(agent) as session:
            session.join()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken_rank()
    assert agent.ended.wait(10)
    assert [r.TYPE for r in agent.requests] == ["hello", "join"]
    assert agent.pod.get(layout.POD_ABORT) == 1


def test_a_heartbeat_that_stands_still_names_the_node(agent: ScriptedAgent) -> None:
    session = connect(agent)
    agent.stand_still()
    with pytest.raises(epfabric.GroupFailed, match=r"node n7.*no sign of life"):
        session.wait_signal(1, 0, 0, at_least=1)
    assert agent.pod.get(layout.POD_ABORT) == 1
    with pytest.raises(epfabric.GroupFailed, match="n7"):
        session.join()
    session.close()


def test_a_vanished_agent_ends_every_wait(agent: ScriptedAgent) -> None:
    session = connect(agent)
    agent.vanish()
    with pytest.raises(epfabric.GroupFailed, match=r"node n7 closed the session"):
        session.ring(1).wait(session.ring(1).drain())
    session.close()


def test_a_closed_session_ends_every_wait_and_says_so(agent: ScriptedAgent) -> None:
    session = connect(agent)
    session.join()
    ring, other = session.ring(0), session.ring(1)
    ticket = ring.drain()
    waiting = other.drain()
    said: list[epfabric.SessionError] = []

    def wait() -> None:
        try:
            other.wait(waiting, 250.0)
        except epfabric.SessionError as error:
            said.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    session.close()
    thread.join(20)
    with pytest.raises(epfabric.SessionError) as caught:
        ring.wait(ticket, 250.0)
    said.append(caught.value)
    assert [type(error) for error in said] == [epfabric.SessionError] * 2, said
    assert {str(error) for error in said} == {"this session is closed"}


def test_what_was_complete_stays_so_when_the_session_is_closed(agent: ScriptedAgent) -> None:
    session = connect(agent)
    ring = session.ring(0)
    ticket = ring.drain()
    ring.flush()
    agent.agent.put(agent.layout.counters + layout.RING_COMPLETED, ticket + 1)
    session.abort()
    ring.wait(ticket)


def test_a_failed_epoch_gives_its_reason_to_a_thread_in_a_wait(agent: ScriptedAgent) -> None:
    session = connect(agent)
    session.join()

    def fail() -> None:
        agent.agent.put(layout.AGENT_ABORT, 1)
        agent.send(messages.Failed(epoch=1, reason="rank 1 (ns/p) was lost"))

    timer = threading.Timer(0.05, fail)
    timer.start()
    with pytest.raises(epfabric.GroupFailed, match=r"rank 1 \(ns/p\) was lost"):
        session.barrier()
    timer.join()
    session.close()


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("fails", "rank 1 was lost"),
        ("vanishes", "node n7 closed the session"),
        ("aborts", "this session was aborted"),
        ("closes", None),
    ],
)
def test_whoever_asked_is_told_once_that_the_group_failed(
    agent: ScriptedAgent, end: str, reason: str | None
) -> None:
    session = connect(agent)
    session.join()
    told: list[str] = []
    forgotten: list[str] = []
    happened = threading.Event()
    session.when_failed(told.append)
    session.when_failed(lambda _: happened.set())
    session.when_failed(forgotten.append)()
    match end:
        case "fails":
            agent.send(messages.Failed(epoch=1, reason="rank 1 was lost"))
        case "vanishes":
            agent.vanish()
        case "aborts":
            session.abort()
        case "closes":
            session.close()
    assert reason is None or happened.wait(20)
    session.abort()
    session.when_failed(told.append)  # at once, where there is a reason of the group's
    late = end in ("fails", "vanishes")
    assert len(told) == (reason is not None) + late
    assert all(reason is not None and reason in one for one in told)
    assert forgotten == []


class Cycle:
    """Only the collector ends it."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._itself, self._end = self, end

    def __del__(self) -> None:
        self._end()


def test_a_buffer_that_the_collector_closes_while_its_session_fails_stops_nothing() -> None:
    usual = gc.get_threshold()

    def work() -> None:
        """Collects after so many allocations: at some number while the lock is held."""
        for count in range(1, 40):
            failure = Failure("n")
            takes_back = failure.when_set(lambda _: None)
            gc.collect(0)
            Cycle(failure.when_set(lambda _: None))
            gc.set_threshold(count)
            takes_back()
            failure.set("it failed")
            gc.set_threshold(*usual)

    try:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), "it waits for its own lock"
    finally:
        gc.set_threshold(*usual)


def test_the_failure_wakes_a_join(tmp_path: Path) -> None:
    failed = messages.Failed(epoch=1, reason="rank 1 was lost")

    def script(request: Request) -> Reply | None:
        return failed if isinstance(request, messages.Join) else None

    with ScriptedAgent(tmp_path, script) as agent:
        session = connect(agent)
        with pytest.raises(epfabric.GroupFailed, match="rank 1 was lost"):
            session.join()
        session.close()


def test_an_agent_that_babbles_is_reported(tmp_path: Path) -> None:
    def script(request: Request) -> bytes | None:
        return b"{}" if isinstance(request, messages.Join) else None

    with ScriptedAgent(tmp_path, script) as agent:
        session = connect(agent)
        with pytest.raises(epfabric.GroupFailed, match="unknown message"):
            session.join()
        session.close()


def test_an_agent_that_answers_something_else_is_reported(tmp_path: Path) -> None:
    def script(request: Request) -> Reply | None:
        return messages.LeaveReply() if isinstance(request, messages.Join) else None

    with ScriptedAgent(tmp_path, script) as agent:
        session = connect(agent)
        with pytest.raises(epfabric.SessionError, match="answered leave"):
            session.join()
        session.abort()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("duplicate-rank", epfabric.SessionError),
        ("join-timeout", epfabric.Timeout),
        ("group-failed", epfabric.GroupFailed),
    ],
)
def test_refusals_keep_their_code_and_sentence(
    tmp_path: Path, code: str, error: type[epfabric.SessionError]
) -> None:
    script = refused(code, "rank 0 is held by ns/a and ns/b")
    with ScriptedAgent(tmp_path, script) as agent:
        with pytest.raises(error, match="ns/a and ns/b") as caught:
            connect(agent)
        assert caught.value.code == code


def test_a_silent_agent_is_a_timeout(tmp_path: Path) -> None:
    with ScriptedAgent(tmp_path, lambda request: None) as agent:
        session = connect(agent, timeout_s=0.5)
        with pytest.raises(epfabric.Timeout, match="register"):
            session.register(4096)


def test_memory_after_join_is_refused_before_it_is_made(agent: ScriptedAgent) -> None:
    session = connect(agent)
    session.epoch = 1
    with pytest.raises(epfabric.SessionError, match=r"before join\(\)"):
        session.register(1 << 62)  # there is no such memory
    session.epoch = None
    session.abort()


def test_no_agent_is_a_timeout_that_says_what_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(epfabric.Timeout, match=r"epfabric\.io/fabric"):
        epfabric.connect(str(tmp_path / "none"), rank=0, world_size=1, timeout_s=0.2)


def test_segments_of_another_layout_are_refused(agent: ScriptedAgent) -> None:
    agent.hello = dataclasses.replace(agent.hello, depth=8192)
    with pytest.raises(epfabric.SessionError, match="one version"):
        connect(agent)


def test_a_rank_that_no_group_can_have_is_refused_here(agent: ScriptedAgent) -> None:
    with pytest.raises(epfabric.SessionError, match="world_size is 5000"):
        epfabric.connect(agent.path, rank=1, world_size=5000, timeout_s=5)
    with pytest.raises(epfabric.SessionError, match="outside a world"):
        epfabric.connect(agent.path, rank=2, world_size=2, timeout_s=5)


def test_segments_of_another_abi_are_refused(agent: ScriptedAgent) -> None:
    agent.agent.put(8, 2)
    with pytest.raises(epfabric.SessionError, match="ABI"):
        connect(agent)


def test_a_forked_child_has_no_session(agent: ScriptedAgent) -> None:
    session = connect(agent)
    ring = session.ring(0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            session.barrier()
        except epfabric.SessionError:
            try:
                ring.write(1, 0, 0, 16)
            except RuntimeError:
                session.close()
                code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    session.join()
    assert not agent.ended.is_set(), "the child ended its parent's session"
    session.close()


def test_stillness_counts_only_time_in_which_somebody_looked() -> None:
    still = Stillness()
    assert not still.look(1, now=0.0)
    assert not still.look(1, now=60.0), "the process was stopped for a minute, not the agent"
    assert not still.look(2, now=60.1)
    looks = [still.look(2, now=60.1 + n / 10) for n in range(1, 12)]
    assert looks.index(True) == 9, "a second in looks of 0.1 s"


def test_waits_keep_the_interpreter_free(agent: ScriptedAgent) -> None:
    session = connect(agent)
    began = threading.Event()

    def wake() -> None:
        began.wait(10)
        time.sleep(0.05)
        agent.agent.put(agent.layout.signals + ((1 * 2 + 1) * 4 + 3) * 8, 5)

    thread = threading.Thread(target=wake)
    thread.start()
    began.set()
    session.wait_signal(1, 1, 3, at_least=5)
    assert session.signal_value(1, 1, 3) == 5
    thread.join()
    session.abort()


def test_an_agent_of_another_version_is_named_with_what_to_do(agent: ScriptedAgent) -> None:
    newer = {"ok": True, "type": "hello", "abi": 9, "what_version_1_does_not_know": 1}
    agent.script = lambda request: json.dumps(newer).encode()
    with pytest.raises(epfabric.SessionError, match=r"version 1 .* version 9: install") as caught:
        connect(agent)
    assert caught.value.code == "abi"


def test_a_refusal_that_only_a_newer_agent_knows_is_told(agent: ScriptedAgent) -> None:
    agent.script = refused("made-up", "come on a weekday")
    with pytest.raises(epfabric.SessionError, match="weekday") as caught:
        connect(agent)
    assert caught.value.code == "made-up"


def test_a_cordoned_node_is_asked_again_until_it_admits(agent: ScriptedAgent) -> None:
    left = [2]

    def script(request: Request) -> Reply | None:
        if isinstance(request, messages.Hello) and left[0]:
            left[0] -= 1
            return messages.ErrorReply(code="cordoned", message="a newer agent is coming")
        return agent.answer(request)

    agent.script = script
    with connect(agent) as session:
        assert session.node == "n7"
    assert [r.TYPE for r in agent.requests].count("hello") == 3


def test_a_cordon_that_stays_is_told(agent: ScriptedAgent) -> None:
    agent.script = refused("cordoned", "the rack is being moved")
    with pytest.raises(epfabric.SessionError, match="rack is being moved"):
        connect(agent, timeout_s=0.5)
