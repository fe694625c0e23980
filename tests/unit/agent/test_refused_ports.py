"""An RDMA NIC that the core refuses takes neither others nor the agent with it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from epfabric_agent._native import NativeError
from epfabric_agent.core_edge import CoreEdge, CoreSettings
from epfabric_agent.groups.hub import NoReporter
from epfabric_agent.peers.client import Agent, PeerClient
from epfabric_agent.pki.identity import Credentials, NodeIdentity
from epfabric_agent.runtime import Runtime
from epfabric_agent.topology.cpus import Cpus
from epfabric_agent.topology.discover import Inventory
from epfabric_agent.topology.machine import Machine
from epfabric_agent.topology.rdma import ROCE_V2, Gid, RdmaPort
from epfabric_crds import Settings
from epfabric_crds.node import Nic, Topology
from epfabric_crds.settings import LowLatency, Transport

GOOD = RdmaPort("good", 1, True, (Gid("10.0.0.1", ROCE_V2),))
BAD = RdmaPort("bad", 1, True, (Gid("10.0.0.2", ROCE_V2),))
WHY = "it has too small completion queues"


class Core:
    """In the place of CoreEdge; refuses some devices, and libfabric if told."""

    def __init__(self) -> None:
        self.current = None
        self.settings: CoreSettings | None = None
        self.refuses = {"bad"}
        self.no_libfabric = False
        self.tries: list[tuple[str, ...]] = []

    async def use(self, settings: CoreSettings | None) -> None:
        self.settings = None
        if settings is None:
            return
        devices = tuple(device for device, _, _ in settings.ports)
        self.tries.append(devices or (settings.provider,))
        for device in devices:
            if device in self.refuses:
                raise NativeError(f"{device} is unfit: {WHY}")
        if settings.provider and self.no_libfabric:
            raise NativeError("no such address")
        self.settings = settings


class Node:
    def __init__(self, folder: Path, *ports: RdmaPort) -> None:
        async def nobody(client: PeerClient, group: str) -> Agent | None:
            return None

        def no_credentials() -> Credentials:
            raise AssertionError("nothing connects here")

        self.ports = ports
        self.core = Core()
        identity = NodeIdentity("a", "moe", "127.0.0.1")
        self.runtime = Runtime(
            identity,
            no_credentials,
            NoReporter(),
            nobody,
            Machine(folder),
            lambda: None,
            lambda _: self.found(),
        )
        self.runtime.core = cast(CoreEdge, self.core)

    def found(self) -> Inventory:
        nics = tuple(Nic(name=f"eth-{p.device}", rdma_device=p.device) for p in self.ports)
        return Inventory(Cpus((0,), {0: 0}), Topology(nics=nics), self.ports)

    async def apply(self, wanted: Transport) -> str:
        """The transport's type in use."""
        await self.runtime.apply(replace(Settings(), transport=wanted))
        return self.runtime.facts().choice.type

    @property
    def reason(self) -> str:
        return self.runtime.facts().choice.reason


async def test_the_good_port_beside_an_unfit_one_is_used(tmp_path: Path) -> None:
    node = Node(tmp_path, BAD, GOOD)
    for _ in range(3):
        assert await node.apply(Transport()) == "verbs"
        assert f"bad is unfit: {WHY}" in node.reason
    assert node.core.tries == [("bad", "good"), ("good",)]


@pytest.mark.parametrize(("allow_tcp", "type_"), [(True, "libfabric"), (False, "")])
async def test_an_unfit_port_alone_is_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, allow_tcp: bool, type_: str
) -> None:
    node = Node(tmp_path, BAD)
    wanted = Transport(allow_tcp=allow_tcp)
    with caplog.at_level(logging.INFO, "epfabric_agent.runtime"):
        for _ in range(3):
            assert await node.apply(wanted) == type_
            assert f"bad is unfit: {WHY}" in node.reason
    assert len([r for r in caplog.records if r.getMessage().startswith("transport")]) == 1
    tries = len(node.core.tries)
    assert tries == 1 + allow_tcp
    node.ports = (replace(BAD, active=False),)
    await node.apply(wanted)
    node.ports = (BAD,)  # it came up anew, and is still no better
    assert await node.apply(wanted) == type_
    assert node.core.tries[tries] == ("bad",)
    node.ports, node.core.refuses = (replace(BAD, gids=GOOD.gids),), set()
    assert await node.apply(wanted) == "verbs"


async def test_a_port_that_goes_down_while_it_is_opened_is_tried_once_it_is_up(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, BAD)
    looks = iter([(BAD,), (replace(BAD, active=False),)])

    def found() -> Inventory:
        node.ports = next(looks, (BAD,))
        return Node.found(node)

    node.runtime._discover = lambda _: found()
    assert await node.apply(Transport()) == ""
    node.core.refuses = set()
    assert await node.apply(Transport()) == "verbs"


async def test_where_tcp_fails_too_both_reasons_are_told(tmp_path: Path) -> None:
    node = Node(tmp_path, BAD)
    node.core.no_libfabric = True
    assert await node.apply(Transport(allow_tcp=True)) == ""
    assert "libfabric does not work here: no such address" in node.reason
    assert f"bad is unfit: {WHY}" in node.reason


async def test_how_writes_are_packed_reaches_the_core(tmp_path: Path) -> None:
    node = Node(tmp_path, GOOD)
    await node.runtime.apply(
        replace(Settings(), low_latency=LowLatency(packing=3, early_pop=False))
    )
    assert node.core.settings is not None
    assert (node.core.settings.packing, node.core.settings.early_pop) == (3, False)
