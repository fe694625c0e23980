"""NIC configuration in Kubernetes: the duty with the API server around it; for kube.mode."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from epfabric_crds.settings import Nics

from epfabric_agent.csi import records
from epfabric_agent.kube import events, paths
from epfabric_agent.kube.api import Api, ApiError
from epfabric_agent.kube.group_report import LAST_S
from epfabric_agent.nic import links
from epfabric_agent.nic.change import BootClock, Changer
from epfabric_agent.nic.duty import Happening, NicDuty, Surroundings
from epfabric_agent.nic.journal import Journal
from epfabric_agent.nic.knobs import Knobs
from epfabric_agent.options import Options
from epfabric_agent.pki.identity import NodeIdentity
from epfabric_agent.runtime import Runtime
from epfabric_agent.topology.machine import Machine

KEEP_S = 600.0
GONE_S = 3.0
CLOSE_S = 8.0 + LAST_S  # of an agent's time to end, for all but the NICs
_log = logging.getLogger(__name__)


class ApiAddresses:
    """IP addresses on the way to the API server: how it is called, and what it calls itself."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: tuple[str, ...] = ()
        self._until = 0.0

    def __call__(self) -> tuple[str, ...]:
        """Raises OSError where they were never known; asks anew after KEEP_S."""
        if time.monotonic() >= self._until:
            try:
                self._known = self._ask()
                self._until = time.monotonic() + KEEP_S
            except OSError:
                if not self._known:
                    raise
        return self._known

    def _ask(self) -> tuple[str, ...]:
        found = set(links.resolve(self._api.host))
        try:
            # Behind a Service's address stands another one, which packets really go to.
            own = (self._api.get("/api") or {}).get("serverAddressByClientCIDRs") or ()
        except ApiError as error:
            raise OSError(f"the API server's own address is not known: {error}") from error
        for entry in own:
            host = str(entry.get("serverAddress", "")).rpartition(":")[0]
            found |= set(links.resolve(host)) if host else set()
        return tuple(sorted(found))


class OtherOperator:
    """Whether nic-configuration-operator has this node's NICs: then they are only read."""

    def __init__(self, api: Api, node: str) -> None:
        self._api = api
        self._node = node
        self._answer = ""
        self._until = 0.0

    def __call__(self) -> str:
        """Why nothing may be changed; empty where nothing is in the way."""
        if time.monotonic() >= self._until:
            self._answer, keep_s = self._ask()
            self._until = time.monotonic() + keep_s
        return self._answer

    def _ask(self) -> tuple[str, float]:
        try:
            for item in self._api.pages(paths.NIC_DEVICES):
                if (item.get("status") or {}).get("node") == self._node:
                    name = item["metadata"]["name"]
                    text = f"nic-configuration-operator has the node's NICs (NicDevice {name})"
                    return f"{text}: they are only read", KEEP_S
        except ApiError as error:
            if error.status == 404:  # no such kind
                return "", KEEP_S
            return f"whether NicDevices exist for the node is not known: {error}", 0.0
        return "", KEEP_S


def at_the_end(wanted: Nics | None, left: Callable[[], bool]) -> Nics | None:
    """What an agent that ends brings the NICs to; None: they stay as they are, for the next one.

    With Observe the next agent is not given the rights to restore them.
    """
    if wanted is not None and wanted.mode == "Observe":
        return wanted
    return Nics() if left() else None


class KubeNics:
    """`uid` of the present EPFabricNode, for Events."""

    def __init__(
        self,
        api: Api,
        identity: NodeIdentity,
        options: Options,
        runtime: Runtime,
        uid: Callable[[], str],
        changed: Callable[[], None],
    ) -> None:
        self._api = api
        self._node = identity.node
        self._runtime = runtime
        self._uid = uid
        self._changed = changed
        self._leave_s = max(GONE_S, options.stop_s - CLOSE_S)
        self._telling: set[asyncio.Task[None]] = set()
        journal = Journal(options.state_dir, records.boot_id())
        knobs = Knobs(Machine(), identity.address, ApiAddresses(api))
        clock = BootClock()
        around = Surroundings(
            sessions=lambda: runtime.sessions,
            quiet=runtime.quiet,
            read_only=OtherOperator(api, identity.node),
            reachable=api.reach,
            tell=self._tell,
        )
        changer = Changer(knobs, journal, api.reach, clock)
        self._duty = NicDuty(knobs, journal, changer, clock, around)

    async def turn(self, wanted: Nics) -> None:
        try:
            found = await self._duty.turn(wanted)
        except OSError as error:
            _log.warning("the NICs are left as they are: %s", error)
            return
        if found != self._runtime.nics:
            self._runtime.nics = found
            self._changed()

    async def leave(self, wanted: Nics | None) -> None:
        """At the agent's end, when its sessions have ended: restores what it has to.

        `wanted` is what its node's object says at last.
        """
        if self._duty.idle:
            return
        try:
            async with asyncio.timeout(self._leave_s):
                last = await asyncio.to_thread(at_the_end, wanted, self._left)
                if last is not None:
                    found = await self._duty.turn(last)
                    if not self._duty.idle:
                        raise OSError(found.message)
        except (TimeoutError, OSError) as error:
            _log.warning("the NICs were not all restored (epfabric-agent nics restore): %r", error)

    def _left(self) -> bool:
        """The object and the agent's pod go at the same time, in either order."""
        end = time.monotonic() + GONE_S
        while True:
            try:
                if self._api.get(paths.node(self._node)) is None:
                    return True
            except ApiError:
                return False
            if time.monotonic() >= end:
                return False
            time.sleep(0.5)

    def _tell(self, happening: Happening) -> None:
        log = _log.warning if happening.warning else _log.info
        log("%s: %s", happening.reason, happening.note)
        uid = self._uid()
        if uid:
            telling = asyncio.create_task(
                asyncio.to_thread(
                    events.tell,
                    self._api,
                    self._node,
                    uid,
                    warning=happening.warning,
                    reason=happening.reason,
                    note=happening.note,
                )
            )
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)
