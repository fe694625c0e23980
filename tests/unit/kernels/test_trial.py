"""What join() makes of the trial of GPU memory when the agent is another than it should be.

A memfd stands in for GPU memory; what real agents do is tested in tests/agent/test_sharing.py.
"""

from __future__ import annotations

import gc
import mmap
import signal
import threading
import weakref
from pathlib import Path

import epfabric
import pytest
from agent.sharing import Maker, Memfd
from epfabric import messages
from epfabric.messages import Reply, Request

from .scripted_agent import ScriptedAgent


def connect(agent: ScriptedAgent) -> epfabric.Session:
    session = epfabric.connect(agent.path, rank=0, world_size=2, timeout_s=20.0)
    session._maker = Maker()
    return session


def test_an_older_agent_is_joined_all_the_same(agent: ScriptedAgent) -> None:
    def older(request: Request) -> Reply | None:
        if isinstance(request, messages.Offer):
            text = "register has no field 'name'; it has bytes, kind"
            return messages.ErrorReply(code=messages.BAD_REQUEST, message=text)
        return agent.answer(request)

    agent.script = older
    with connect(agent) as session:
        session.join()
        assert session.nvlink[0] == "none"
        assert "older than this library" in session.nvlink[1]
    assert [r.TYPE for r in agent.requests] == ["hello", "register", "join", "leave"]


def test_a_process_without_a_gpu_asks_its_agent_for_nothing_more(agent: ScriptedAgent) -> None:
    with epfabric.connect(agent.path, rank=0, world_size=2, timeout_s=20.0) as session:
        session.join()
        assert session.nvlink == ("none", "this process uses no GPU")
    assert [r.TYPE for r in agent.requests] == ["hello", "join", "leave"]


def test_an_agent_that_waits_for_a_trial_no_longer_is_believed(agent: ScriptedAgent) -> None:
    """Its answer to join comes in the middle of the trial."""

    def impatient(request: Request) -> Reply | None:
        match request:
            case messages.Offer() | messages.Unregister():
                reply = messages.UnregisterReply()
                offered = messages.RegisterReply(region=0, offset=0, bytes=4096)
                return offered if isinstance(request, messages.Offer) else reply
            case messages.Join():
                return messages.Trial(ranks=(0, 1))
            case messages.PeerMemory():
                agent.send(messages.JoinReply(epoch=7, regions=(0, 0)))
                return messages.ErrorReply(code="not-offered", message="rank 1 offers nothing")
            case messages.Tried():
                return messages.ErrorReply(code="bad-state", message="nothing is to be tried now")
        return agent.answer(request)

    agent.script = impatient
    with connect(agent) as session:
        session.join()
        assert session.epoch == 7
        assert session.nvlink == ("none", "rank 1 offers nothing")
    assert [r.TYPE for r in agent.requests] == [
        "hello", "register", "join", "peer_memory", "tried", "unregister", "leave",
    ]  # fmt: skip


@pytest.mark.parametrize("first", ["join", "request"])
@pytest.mark.parametrize("code", ["join-timeout", "group-failed"])
def test_a_refusal_of_join_is_not_taken_for_that_of_what_is_tried(
    agent: ScriptedAgent, code: str, first: str
) -> None:
    """It comes in the middle of the trial, and the requests after it get answers of their own."""
    refusal = messages.ErrorReply(code=code, message="why the join ended")

    def gives_up(request: Request) -> Reply | None:
        match request:
            case messages.Offer():
                return messages.RegisterReply(region=0, offset=0, bytes=4096)
            case messages.Unregister():
                return messages.UnregisterReply()
            case messages.Join() if len(agent.requests) == 3:
                return messages.Trial(ranks=(0, 1))
            case messages.PeerMemory():
                other = messages.ErrorReply(code="not-offered", message="rank 1 offers nothing")
                replies = (refusal, other) if first == "join" else (refusal, refusal)
                agent.send(replies[0])
                return replies[1]
            case messages.Tried():
                return messages.TriedReply()
        return agent.answer(request)

    agent.script = gives_up
    with connect(agent) as session:
        with pytest.raises(epfabric.SessionError, match="why the join ended") as caught:
            session.join()
        assert caught.value.code == code
        session.broker.report("none", "it is in step")
        session.join()
        assert session.epoch == 1


def test_an_interrupted_request_leaves_no_answer_for_the_next(agent: ScriptedAgent) -> None:
    session = epfabric.connect(agent.path, rank=0, world_size=2, timeout_s=20.0)
    session.join()
    main = threading.main_thread().ident
    assert main is not None

    def interrupts(request: Request) -> Reply | None:
        if isinstance(request, messages.PeerMemory):
            signal.pthread_kill(main, signal.SIGUSR1)
            return None
        return agent.answer(request)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    agent.script = interrupts
    # Not SIGINT: a library that another test has loaded may have made it the end of the process.
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            session.broker.find(1, "memory", 20.0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(epfabric.SessionError, match="closed"):
        session.broker.withdraw("memory")


def test_a_session_that_has_ended_is_freed_at_once(agent: ScriptedAgent) -> None:
    """Its segments are mapped as long as it is there."""
    gc.disable()
    try:
        session = epfabric.connect(agent.path, rank=0, world_size=2, timeout_s=20.0)
        session.join()
        session.close()
        gone = weakref.ref(session)
        del session
        assert gone() is None
    finally:
        gc.enable()


class Old(Maker):
    """Of a driver that lacks a function."""

    def make(self, size_bytes: int) -> Memfd:
        raise RuntimeError('Function "cuMemCreate" not found')


def test_what_an_old_driver_lacks_is_a_reason_and_no_error_of_join(agent: ScriptedAgent) -> None:
    with connect(agent) as session:
        session._maker = Old()
        session.join()
        assert session.nvlink == ("none", 'Function "cuMemCreate" not found')


class Gpu(Maker):
    """One whose driver makes fabric handles, or breaks at the attempt."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._broken = fault

    def fabric(self) -> str:
        if self._broken:
            raise epfabric.SessionError(self._broken)
        return ""


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("", "fabric handles can be made, and are not used"),
        ("CUDA: x", "no fabric handles: CUDA: x"),
    ],
)
def test_fabric_handles_that_fail_leave_descriptors_as_they_are(
    agent: ScriptedAgent, fault: str, says: str
) -> None:
    def tries(request: Request) -> Reply | None:
        match request:
            case messages.Offer():
                return messages.RegisterReply(region=0, offset=0, bytes=request.bytes)
            case messages.Unregister():
                return messages.UnregisterReply()
            case messages.Tried():
                agent.send(messages.TriedReply())
                return messages.JoinReply(epoch=1, regions=(0, 0))
            case messages.Join():
                return messages.Trial(ranks=(0,))
        return agent.answer(request)

    agent.script = tries
    with connect(agent) as session:
        session._maker = Gpu(fault)
        session.join()
        assert session.nvlink == ("posix_fd", f"wrote to the GPU memory of 0 other rank(s); {says}")


def test_a_mapped_file_of_any_name_is_no_error_of_join(
    agent: ScriptedAgent, tmp_path: Path
) -> None:
    with open(bytes(tmp_path) + b"/\xff", "w+b") as file:
        file.truncate(4096)
        with (
            mmap.mmap(file.fileno(), 4096),
            epfabric.connect(agent.path, rank=0, world_size=2, timeout_s=20.0) as session,
        ):
            session.join()
            assert session.nvlink == ("none", "this process uses no GPU")


def test_memory_without_its_descriptor_is_an_error(agent: ScriptedAgent) -> None:
    def empty(request: Request) -> Reply | None:
        if isinstance(request, messages.PeerMemory):
            return messages.PeerMemoryReply(bytes=4096, note="")
        return agent.answer(request)

    agent.script = empty
    session = epfabric.connect(agent.path, rank=0, world_size=2, timeout_s=20.0)
    session.join()
    with pytest.raises(epfabric.SessionError, match="rank 1 came with 0 descriptors"):
        session.broker.find(1, "memory")
    session.close()


def test_a_trial_of_memory_that_was_never_offered_is_an_answer_of_its_own(
    agent: ScriptedAgent,
) -> None:
    def mistaken(request: Request) -> Reply | None:
        match request:
            case messages.Join():
                agent.send(messages.Trial(ranks=(0, 1)))
                return messages.JoinReply(epoch=1, regions=(0, 0))
            case messages.Tried():
                return messages.TriedReply()
        return agent.answer(request)

    agent.script = mistaken
    with epfabric.connect(agent.path, rank=0, world_size=2, timeout_s=20.0) as session:
        session.join()
        assert session.nvlink == ("none", "this process uses no GPU")
