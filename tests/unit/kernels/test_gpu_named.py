"""Which GPU a rank's hello names, and what comes of it where the agent takes none."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import epfabric
import pytest
from epfabric import messages, wire
from epfabric.messages import Reply, Request

from .scripted_agent import ScriptedAgent

GPU = "GPU-a0000000-1111-2222-3333-444444444444"
HELLO = messages.Hello(abi=1, oldest=1, rank=0, world_size=2, gpu=GPU, pid=os.getpid())


def named(agent: ScriptedAgent) -> list[str | None]:
    return [one.gpu for one in agent.requests if isinstance(one, messages.Hello)]


@pytest.mark.parametrize(("given", "said"), [(None, None), ("", None), (GPU, GPU)])
def test_a_rank_names_the_gpu_that_it_is_given(
    agent: ScriptedAgent, given: str | None, said: str | None
) -> None:
    """This process has no CUDA context."""
    with epfabric.connect(agent.path, rank=0, world_size=2, gpu=given, timeout_s=20):
        assert named(agent) == [said]


class Takes:
    """An agent that refuses every GPU with this code."""

    def __init__(self, code: str) -> None:
        self._code = code

    def __call__(self, request: Request) -> Reply | None:
        if isinstance(request, messages.Hello) and request.gpu is not None:
            return messages.ErrorReply(code=self._code, message=f"not {request.gpu}")
        return messages.LeaveReply() if isinstance(request, messages.Leave) else None


def test_a_gpu_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    with ScriptedAgent(tmp_path, Takes("gpu")) as agent:
        with pytest.raises(epfabric.SessionError, match=f"not {GPU}") as caught:
            epfabric.connect(agent.path, rank=0, world_size=2, gpu=GPU, timeout_s=20)
        assert caught.value.code == "gpu"
        with epfabric.connect(agent.path, rank=0, world_size=2, timeout_s=20):
            assert named(agent) == [GPU, None]


@pytest.mark.parametrize("code", ["gpu", "unsupported"])
def test_a_gpu_that_nobody_asked_for_is_left_out_where_it_is_refused(
    tmp_path: Path, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedAgent(tmp_path, Takes(code)) as agent:
        sock, reply, fds = wire.attach(agent.path, HELLO, time.monotonic() + 20, gpu_asked=False)
        assert f"without a GPU: not {GPU}" in caplog.text
        assert named(agent) == [GPU, None]
        assert reply == dataclasses.replace(agent.hello)
        sock.close()
        wire.close_all(fds)


def says_nothing_of_a_gpu(request: Request) -> Reply | bytes | None:
    return b"" if isinstance(request, messages.Hello) and request.gpu is not None else None


def test_a_short_time_is_enough_where_only_the_gpu_that_nobody_asked_for_takes_long(
    tmp_path: Path,
) -> None:
    with ScriptedAgent(tmp_path, says_nothing_of_a_gpu) as agent:
        with pytest.raises(epfabric.Timeout):
            wire.attach(agent.path, HELLO, time.monotonic() + 0.1, gpu_asked=True)
        sock, _, fds = wire.attach(agent.path, HELLO, time.monotonic() + 6, gpu_asked=False)
        assert named(agent) == [GPU, GPU, None]
        sock.close()
        wire.close_all(fds)
