"""The end of a group is written although its agent ends while the API server is slow."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any, cast

from epfabric_agent.groups.state import GroupState
from epfabric_agent.kube.api import Api, ApiError
from epfabric_agent.kube.group_report import GroupReporter
from epfabric_agent.peers.client import Agent
from epfabric_agent.pods import Pod

WAIT_S = 10.0


class SlowApi:
    """Answers the first write when it may, with an error or not; the others at once."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.begun, self.may = threading.Event(), threading.Event()
        self.phases: list[str] = []

    def apply(self, path: str, body: dict[str, Any], manager: str) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.may.wait(WAIT_S)
            if self.fails:
                raise ApiError(0, "cut off")
        if path.endswith("/status"):
            self.phases.append(body["status"]["phase"])


async def ended(tmp_path: Any, fails: bool, *later: str) -> list[str]:
    """Phases that the API server got of a group that is Ready when the agent begins to end."""
    api = SlowApi(fails)
    own = Agent("n1", "10.0.0.1:7470")
    reporter = GroupReporter(cast(Api, api), "moe", lambda: own, lambda _: None)
    pod = Pod("ns/p", "ns", "p", "group", None, tmp_path)
    reporter.state(pod, GroupState("Ready", "", 1, 2, ()))
    writing = asyncio.create_task(reporter.run())
    assert await asyncio.to_thread(api.begun.wait, WAIT_S)
    writing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await writing
    for phase in later:
        reporter.state(pod, GroupState(cast(Any, phase), "its agent ended", 1, 2, ()))
    asyncio.get_running_loop().call_later(0.1, api.may.set)
    await reporter.close()
    return api.phases


async def test_what_is_told_at_the_end_is_written_after_what_was_under_way(tmp_path: Any) -> None:
    assert await ended(tmp_path, False, "Failed") == ["Ready", "Failed"]


async def test_a_write_that_fails_when_it_was_cancelled_is_done_again(tmp_path: Any) -> None:
    assert await ended(tmp_path, True) == ["Ready"]
