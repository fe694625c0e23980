"""Sessions that are opened while what the agent may use changes; on the real core."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from epfabric_agent import _native
from epfabric_agent.groups.local_rank import LocalRank
from epfabric_agent.session.nic_turns import Turn
from epfabric_agent.session.opening import Memory, open_native
from epfabric_agent.session.proxy_cpus import ProxyCpus
from epfabric_agent.session.quota import Grant
from epfabric_agent.session.room import Room
from epfabric_agent.session.services import Services
from epfabric_agent.topology.machine import Machine
from epfabric_crds import Settings

WAIT_S = 60.0


class Opening:
    """One rank's session, and a core that opens it when `meanwhile` is over."""

    def __init__(self, root: Path) -> None:
        self.usable = frozenset[int]()
        self.ranks: list[LocalRank] = []
        machine = Machine(root=root, affinity=lambda: self.usable)
        self.cpus = ProxyCpus(machine, lambda: self.ranks, lambda: None)
        self.core = _native.Core(address="", provider="")

    async def open(self, meanwhile: frozenset[int]) -> list[int]:
        """Where its proxies are; the agent sees that only `meanwhile` may be used as it opens."""
        loop = asyncio.get_running_loop()

        def open_session(**settings: Any) -> _native.Session:
            self.usable = meanwhile
            asyncio.run_coroutine_threadsafe(self.cpus.look(), loop).result(WAIT_S)
            return self.core.open_session(**settings)

        sample = self.cpus.take(1, strict=False)
        rank = LocalRank(0, 1, "ns/pod", 1, sample, lambda *_: None, lambda: None)
        self.ranks.append(rank)
        services = SimpleNamespace(
            core=SimpleNamespace(open_session=open_session),
            settings=Settings(),
            quota=SimpleNamespace(inflight=lambda _: 0),
            cpus=self.cpus,
        )
        pod = cast(Any, None)
        turn = Turn((), 0, lambda: None)
        memory = Memory(Grant(pod, 0), *Room(lambda: None).take(0, 0))
        await open_native(rank, pod, cast(Services, services), memory, turn)
        assert rank.native is not None
        return [proxy["cpu"] for proxy in rank.native.counters()["proxies"]]


async def test_a_session_that_opens_during_a_look_is_not_left_where_it_may_not_be(
    tmp_path: Path,
) -> None:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        pytest.skip("only one CPU may be used here: there is none to move to")
    first, other = usable[:2]
    opening = Opening(tmp_path)
    opening.usable = frozenset({first})
    await opening.cpus.look()
    assert await opening.open(meanwhile=frozenset({other})) == [other]
    opening.core.close()
