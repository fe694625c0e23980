"""The agent's running parts, with or without Kubernetes: core, peers, groups, sockets, telemetry.

Made and driven by kube.mode and manifest.mode. `apply` brings it to the settings that are wanted;
`facts` says where it is.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from epfabric_crds import Settings
from epfabric_crds.group import BarrierStatistics
from epfabric_crds.node import NicRoom, PeerMemory, Topology
from epfabric_crds.settings import Traces as TracesSettings

from epfabric_agent.core_edge import CoreEdge, CoreSettings, core_settings
from epfabric_agent.groups.context import NodeContext
from epfabric_agent.groups.hub import Hub, Reporter
from epfabric_agent.groups.peer_memory import peer_memory
from epfabric_agent.nic.counters import NicFaults
from epfabric_agent.nic.report import NicReport
from epfabric_agent.nic.room import rooms
from epfabric_agent.nic.selector import rdma_devices_of
from epfabric_agent.peers.client import Agent, PeerClient
from epfabric_agent.peers.server import PeerServer
from epfabric_agent.pki.identity import Credentials, NodeIdentity, PkiError, left_s
from epfabric_agent.sampling import Sampler, barrier_statistics
from epfabric_agent.session.gpus import Ask, Gpus, nobody
from epfabric_agent.session.nic_turns import NicTurns
from epfabric_agent.session.proxy_cpus import ProxyCpus
from epfabric_agent.session.quota import Quota
from epfabric_agent.session.room import Room
from epfabric_agent.session.services import Services, Unserved
from epfabric_agent.session.sockets import Sockets
from epfabric_agent.telemetry import config as telemetry_config
from epfabric_agent.telemetry import runtime as telemetry_runtime
from epfabric_agent.telemetry.snapshot import Snapshot
from epfabric_agent.telemetry.traces import LOOK_S, Traces
from epfabric_agent.threads import named
from epfabric_agent.topology.cpus import Cpus
from epfabric_agent.topology.discover import Inventory, discover
from epfabric_agent.topology.machine import Machine
from epfabric_agent.topology.memory import left_bytes
from epfabric_agent.topology.transport import Choice, Refusals, choose

TELEMETRY_S = 3.0
COUNTERS_S = 3.0
PORT_LOOKS, PORT_LOOK_S = 30, 1.0  # after a port changed; later ones are the regular look's
STUCK_STATUS = 3  # as the core's own, proxy.cc
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Facts:
    """What a status shows."""

    endpoint: str
    choice: Choice
    inventory: Inventory
    sessions: int
    places: tuple[tuple[str, int, int], ...]
    """Session, proxy, CPU."""
    constrained: bool
    local: bool
    behind: str
    """What of the settings waits for the sessions to end; empty where nothing does."""
    nics: NicReport
    groups: tuple[str, ...] = ()
    """Those that end if this agent does."""
    peer_memory: tuple[PeerMemory, ...] = ()
    nic_room: tuple[NicRoom, ...] = ()


class Runtime:
    def __init__(
        self,
        identity: NodeIdentity,
        credentials: Callable[[], Credentials],
        reporter: Reporter,
        find: Callable[[PeerClient, str], Awaitable[Agent | None]],
        machine: Machine,
        changed: Callable[[], None],
        look: Callable[[Machine], Inventory] = discover,
        held: Ask = nobody,
    ) -> None:
        self.identity = identity
        self.client = PeerClient(identity, credentials)
        self.hub = Hub(reporter)
        self.core = CoreEdge(identity.address, self.hub, self._ports_changed)
        self.sockets = Sockets(self)
        self.endpoint = ""
        self._find = find
        self._credentials = credentials
        self._machine = machine
        self._discover = look
        self._changed = changed
        self._server = PeerServer(identity.node, identity.fabric, self.hub, credentials)
        self._choice = Choice("", "", "the agent has no settings yet")
        self._inventory = Inventory(Cpus((), {}), Topology(), ())
        self._quota = Quota(0, 0)
        self._room = Room(lambda: left_bytes(machine))
        self.cpus = ProxyCpus(machine, self.hub.ranks, changed)
        self.gpus = Gpus(held, lambda: self._inventory.topology.gpus)
        self._connected = False
        self._nic_turns = NicTurns(machine, lambda: self._inventory)
        self._nic_faults = NicFaults(machine)
        self._refusals = Refusals()
        self._services: Services | None = None
        self._applying = asyncio.Lock()
        self._settled = asyncio.Event()  # the core is not being replaced
        self._settled.set()
        self._nics_still = asyncio.Event()  # no NIC is being changed
        self._nics_still.set()
        self.nics = NicReport()
        self._settings: Settings | None = None
        self._cordon = ""
        self._served: tuple[Settings, str, str] | None = None  # with endpoint and cordon
        self._behind = ""
        self._sampler = Sampler(self.hub, lambda: self.core.current, lambda: self._choice)
        self._telemetry: telemetry_runtime.Telemetry | None = None
        self._traces = Traces(self._sampler.kept)

    async def listen(self, port: int) -> None:
        """Starts the peer server. Raises OSError, PkiError."""
        address = self.identity.address
        await self._server.start(address, port)
        host = f"[{address}]" if ":" in address else address
        self.endpoint = f"{host}:{self._server.port}"
        _log.info("agents reach this one at %s", self.endpoint)

    async def apply(self, settings: Settings, cordon: str = "") -> None:
        """Serves with these settings from now on; sessions that exist keep theirs.

        `cordon`: why sessions of groups that are not here yet are refused; empty where none is.
        """
        async with self._applying:
            await self._apply(settings, cordon)

    async def _apply(self, settings: Settings, cordon: str) -> None:
        self._inventory = await asyncio.to_thread(self._discover, self._machine)
        await self.cpus.look()
        await self._nic_faults.look_in_time(COUNTERS_S)
        if self._settings is not None and settings.proxies != self._settings.proxies:
            self._refusals.clear()
        self._refusals.keep(self._inventory.rdma_ports)
        choice = self._choose(settings)
        memory = settings.memory
        self._quota.set_limits(memory.per_pod_bytes, memory.per_node_bytes, settings.tenants)
        await self._start_telemetry(settings)
        wanted = core_settings(settings, choice) if choice.usable else None
        changed = self.core.settings != wanted
        if changed and self.sessions:
            self._behind = (
                f"transport and proxy settings wait until the node's {self.sessions} "
                "session(s) have ended"
            )
            wanted = self.core.settings
        else:
            self._behind = ""
            if changed:
                self._settled.clear()
        try:
            if not self._settled.is_set():
                self._services = None
                choice = await self._use_core(settings, choice, wanted)
            if choice != self._choice:
                log = _log.info if choice.usable else _log.warning
                log("transport %s: %s", choice.type or "none", choice.reason)
            self._choice = choice
            wants = (settings, self.endpoint, cordon)
            if changed or wants != self._served:
                self._serve_with(settings, cordon)
                self._keep_barriers(settings.telemetry.traces)
        finally:
            self._settled.set()
        self._settings, self._served = settings, wants
        self._cordon = cordon

    async def services(self) -> Services:
        """What a new session gets; see session.services.Current. Raises Unserved."""
        while not (self._settled.is_set() and self._nics_still.is_set()):
            await self._settled.wait()
            await self._nics_still.wait()
        if self._services is None:
            raise Unserved(
                f"the agent of node {self.identity.node} serves no sessions: {self._choice.reason}"
            )
        return self._services

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[bool]:
        """True where no session is there; then none begins before the block ends."""
        if self.sessions:
            yield False
            return
        self._nics_still.clear()
        try:
            yield True
        finally:
            self._nics_still.set()

    @property
    def serving(self) -> bool:
        return self._services is not None or not self._settled.is_set()

    @property
    def sessions(self) -> int:
        return len(self.hub.ranks())

    def facts(self) -> Facts:
        core = self.core.current
        places = []
        for part in self.hub.parts.values():
            for local in part.ranks.values():
                name = f"{part.group}/{local.rank}"[:512]
                cpus = self.cpus.ledger.cpus_of(local.sample)
                places += [(name, index, cpu) for index, cpu in enumerate(cpus)]
        return Facts(
            endpoint=self.endpoint,
            choice=self._choice,
            inventory=self._inventory,
            sessions=self.sessions,
            places=tuple(sorted(places)),
            constrained=self.cpus.ledger.constrained,
            local=self.cpus.ledger.local,
            behind=self._behind,
            nics=self.nics,
            groups=self.hub.living(),
            peer_memory=peer_memory(self.hub.parts.values()),
            nic_room=rooms(core.nics()) if core is not None else (),
        )

    def barriers(self, handle: int) -> BarrierStatistics | None:
        """Statistics of the epoch with this handle, on the leader's node."""
        core = self.core.current
        return barrier_statistics(core.barrier_stats(handle)) if core is not None else None

    async def look_again(self) -> None:
        """Discovers the node anew; settings that waited for sessions to end are applied."""
        if self._settings is not None:
            await self.apply(self._settings, self._cordon)

    async def _ports_changed(self) -> None:
        """A new choice of ports waits for the sessions, which mostly end by the same cause."""
        for _ in range(PORT_LOOKS):
            await self.look_again()
            self._changed()
            if not self._behind:
                return
            await asyncio.sleep(PORT_LOOK_S)

    async def close(self) -> None:
        """Ends everything in order; each step has a bound, and the log names a slow one."""
        why = f"the agent of node {self.identity.node} ended"
        await named("its groups", self.hub.close(why))
        await named("its sessions", self.sockets.close())
        await named("other agents' calls", self._server.stop())
        await named("traces", asyncio.to_thread(self._traces.shutdown, TELEMETRY_S))
        if self._telemetry is not None:
            last = asyncio.to_thread(self._telemetry.shutdown, TELEMETRY_S)
            await named("the last metrics", last)
        await named("the core", self.core.use(None))

    def _choose(self, settings: Settings) -> Choice:
        return choose(
            settings.transport,
            settings.nics,
            self._inventory.rdma_ports,
            rdma_devices_of(settings.nics.selector, self._inventory.topology.nics),
            self._refusals.reasons,
        )

    async def _use_core(
        self, settings: Settings, choice: Choice, wanted: CoreSettings | None
    ) -> Choice:
        """What is in use now: where the core refuses ports, it is chosen again without them."""
        from epfabric_agent._native import NativeError

        while True:
            try:
                await self.core.use(wanted)
            except NativeError as error:
                if wanted is None or not wanted.ports:
                    return Choice(
                        "", "", f"{choice.type} does not work here: {error} ({choice.reason})"
                    )
                # Looked at again, as a port that went down meanwhile is to be tried once it is up.
                self._inventory = await asyncio.to_thread(self._discover, self._machine)
                self._refusals.add(wanted.ports, str(error), self._inventory.rdma_ports)
                choice = self._choose(settings)
                wanted = core_settings(settings, choice) if choice.usable else None
            else:
                return choice

    def _serve_with(self, settings: Settings, cordon: str) -> None:
        core = self.core.current
        if core is None:
            self._services = None
            return
        if self._choice.ports == self.core.ports:  # else it says nothing of these
            self._connected = self._choice.connected
        self.hub.use(
            NodeContext(
                node=self.identity.node,
                endpoint=self.endpoint,
                core=core,
                client=self.client,
                join_timeout_s=settings.barrier.join_timeout_ms / 1000,
                barrier_timeout_ms=settings.barrier.timeout_ms,
                mask=settings.on_rank_loss == "Mask",
                dissemination=settings.barrier.algorithm == "dissemination",
                nic_faults=self._nic_faults.since,
                find=lambda group: self._find(self.client, group),
                observe=self._observe,
                changed=self._changed,
                give_up=self._give_up,
            )
        )
        self._services = Services(
            node=self.identity.node,
            fabric=self.identity.fabric,
            core=core,
            settings=settings,
            hub=self.hub,
            quota=self._quota,
            room=self._room,
            cpus=self.cpus,
            changed=self._changed,
            nics=self._nic_turns,
            ports=self.core.ports if self._connected else (),
            lines=self.core.lines,
            spares=self.core.spares,
            pins=self.core.pins,
            cordon=cordon,
        )

    def _give_up(self, reason: str) -> None:
        """The kubelet (or whoever started the agent) starts a new one, which begins clean."""
        _log.critical("the agent ends: %s", reason)
        logging.shutdown()
        os._exit(STUCK_STATUS)

    def _keep_barriers(self, traces: TracesSettings) -> None:
        """Where traces go nowhere, nothing is kept for them."""
        if self.core.current is None:
            return
        if self._traces.on:
            self.core.current.keep_barriers(ratio=traces.ratio, slow_ns=traces.slow_us * 1000)
        else:
            self.core.current.keep_barriers(ratio=0.0, slow_ns=0)

    def _snapshot(self) -> Snapshot:
        traces = self._traces
        return replace(
            self._sampler(),
            traces_sent=traces.sent,
            traces_lost=traces.lost,
            certificate_left_s=self._certificate_left_s(),
        )

    def _certificate_left_s(self) -> float | None:
        try:
            return left_s(self._credentials().certificate, datetime.datetime.now(datetime.UTC))
        except PkiError:
            return None

    def _observe(self) -> None:
        self._traces.observe()
        if self._telemetry is not None:
            self._telemetry.observe()

    async def _start_telemetry(self, settings: Settings) -> None:
        try:
            configure = partial(
                telemetry_config.configure,
                node=self.identity.node,
                fabric=self.identity.fabric,
                environ=os.environ,
            )
            told = settings.telemetry
            wanted = configure(told.endpoint or "", interval_s=told.interval_ms / 1000)
            endpoint = told.traces.endpoint or told.endpoint or ""
            traces = configure(endpoint, interval_s=LOOK_S, signal="traces")
        except ValueError as error:
            _log.error("telemetry: %s", error)
            return
        if self._telemetry is None:
            start = telemetry_runtime.start
            self._telemetry = await asyncio.to_thread(start, wanted, self._snapshot)
        else:
            await asyncio.to_thread(self._telemetry.apply, wanted)
        await asyncio.to_thread(self._traces.apply, traces, TELEMETRY_S)
