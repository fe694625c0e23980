"""Runs the agent in Kubernetes until it is told to stop; for main.

Each duty is a loop of its own that survives an absent API server: settings, Lease, certificate,
sockets, status, groups. Sessions and groups go on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from epfabric_crds import names
from epfabric_crds.settings import Nics

from epfabric_agent.csi import records
from epfabric_agent.groups.hub import Hub
from epfabric_agent.kube import lease, settings_file
from epfabric_agent.kube.api import Api, ApiError, connect
from epfabric_agent.kube.certificate_loop import Certificates, by_api
from epfabric_agent.kube.group_report import GroupReporter
from epfabric_agent.kube.nics import KubeNics
from epfabric_agent.kube.pod_events import PodEvents
from epfabric_agent.kube.pod_resources import PodResources
from epfabric_agent.kube.publish import StatusWriter
from epfabric_agent.kube.settings import SettingsWatch, Wanted
from epfabric_agent.kube.status import facts_of_agent
from epfabric_agent.options import Options
from epfabric_agent.peers.client import Agent
from epfabric_agent.pki.identity import NodeIdentity
from epfabric_agent.pods import of_record
from epfabric_agent.runtime import Runtime
from epfabric_agent.topology.machine import Machine

LOOK_S = 10.0
HEAR_S = 5.0
STATUS_S = 1.0
RECORDS_S = 0.2
RECORDS_ALL = 25  # looks between two that check every socket
LEASE_RETRY_S = 2.0
LEASE_LOOK_S = 0.5
STATISTICS_S = 30.0
_log = logging.getLogger(__name__)


async def run(options: Options, stop: asyncio.Event) -> None:
    """Raises ConfigError, PkiError, OSError at start; afterwards it only ends by `stop`."""
    api = connect(options.kubeconfig)
    identity = NodeIdentity(options.node, options.fabric, options.address)
    mode = KubeMode(api, identity, options)
    duties = [asyncio.create_task(duty) for duty in mode.duties()]
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([waiting, *duties], return_when=asyncio.FIRST_COMPLETED)
        for duty in duties:
            if duty.done():
                duty.result()  # a duty ends only by what the agent cannot go on with
    finally:
        waiting.cancel()
        for duty in duties:
            duty.cancel()
        await mode.end()


class KubeMode:
    def __init__(self, api: Api, identity: NodeIdentity, options: Options) -> None:
        self._api = api
        self._identity = identity
        self._options = options
        self._wanted: Wanted | None = None
        self._applied: Wanted | None = None
        self._heard = asyncio.Event()  # what the API server says of this node
        self._wake = asyncio.Event()
        self._certificates = Certificates(identity, by_api(api, options.namespace, identity))
        self._events = PodEvents(api, identity.node)
        self._reporter = GroupReporter(
            api,
            identity.fabric,
            self._own,
            lambda handle: self.runtime.barriers(handle),
            self._events.refused,
        )
        self._status = StatusWriter(api, identity.node, facts_of_agent(options.pod_uid))
        self.runtime = Runtime(
            identity,
            self._certificates.current,
            self._reporter,
            self._reporter.find,
            Machine(),
            changed=self._wake.set,
            held=PodResources(options.pod_resources),
        )
        self._nics_wake = asyncio.Event()
        self.nics = KubeNics(
            api,
            identity,
            options,
            self.runtime,
            uid=lambda: self._wanted.uid if self._wanted else "",
            changed=self._wake.set,
        )
        self._loop = asyncio.get_running_loop()
        self.watch = SettingsWatch(
            api,
            identity.node,
            identity.fabric,
            self._see_soon,
        )

    def duties(self) -> list[Coroutine[Any, Any, None]]:
        """Each runs until it is cancelled."""
        self.watch.start()
        return [
            self._renew_lease(),
            self._certify(),
            self._follow_settings(),
            self._start_without_api(),
            self._follow_records(),
            self._reporter.run(),
            self._events.run(),
            self._refresh_statistics(),
            self._tend_nics(),
        ]

    async def end(self) -> None:
        """Sessions first: they hold back what restores NICs."""
        self.watch.stop()
        try:
            await self.runtime.close()
            await self._reporter.close()
        finally:
            await self.nics.leave(self._wanted.spec.nics if self._wanted else None)

    def _own(self) -> Agent:
        return Agent(self._identity.node, self.runtime.endpoint)

    def _see_soon(self, wanted: Wanted | None) -> None:
        self._loop.call_soon_threadsafe(self._see, wanted)

    def _see(self, wanted: Wanted | None) -> None:
        self._wanted = wanted
        self._heard.set()
        if wanted is None:
            _log.info("there is no EPFabricNode %s of this fabric yet", self._identity.node)
            settings_file.forget(self._options.state_dir)
        self._wake.set()
        self._nics_wake.set()

    async def _renew_lease(self) -> None:
        """While there is an EPFabricNode: with it the Lease goes, and must not come again."""
        while True:
            pause_s: float = names.LEASE_RENEW_SECONDS
            if self._wanted is None:
                await asyncio.sleep(LEASE_LOOK_S)
                continue
            try:
                await asyncio.to_thread(
                    lease.renew,
                    self._api,
                    self._options.namespace,
                    self._identity.node,
                    self._wanted.uid,
                )
            except ApiError as error:
                _log.warning("the Lease was not renewed: %s", error)
                pause_s = LEASE_RETRY_S
            await asyncio.sleep(pause_s)

    async def _certify(self) -> None:
        await self._certificates.first()
        await self.runtime.listen(self._options.port or 0)
        self._wake.set()
        await self._certificates.keep()

    async def _follow_settings(self) -> None:
        """Brings the runtime to the settings, then the status to the runtime."""
        while True:
            wanted = self._wanted
            # Nobody signs certificates while settings are kept ones: ranks of one node need none.
            if wanted is not None and (self.runtime.endpoint or not self._heard.is_set()):
                if wanted != self._applied:
                    _log.info("settings of generation %d", wanted.generation)
                    await self.runtime.apply(wanted.spec, wanted.spec.cordon or "")
                    self._applied = wanted
                    await self._keep(wanted)
                else:
                    await self.runtime.look_again()
            await self._publish(wanted)
            await asyncio.sleep(STATUS_S)  # not more often than this
            await self._changes()

    async def _keep(self, wanted: Wanted) -> None:
        try:
            await asyncio.to_thread(
                settings_file.keep, self._options.state_dir, self._identity.node, wanted
            )
        except OSError as error:
            _log.warning("the settings are not kept for a start without API server: %s", error)

    async def _start_without_api(self) -> None:
        """Serves with the settings of an earlier run while the API server says nothing."""
        try:
            await asyncio.wait_for(self._heard.wait(), HEAR_S)
        except TimeoutError:
            identity = self._identity
            found = settings_file.kept(self._options.state_dir, identity.node, identity.fabric)
            if found is not None and not self._heard.is_set():
                _log.warning(
                    "the API server says nothing: serving with the kept settings of generation %d",
                    found.generation,
                )
                self._wanted = found
                self._wake.set()
        await asyncio.Event().wait()  # a duty that returns would end the agent

    async def _changes(self) -> None:
        """Returns at a change, or when it is time to look anyway."""
        loop = asyncio.get_running_loop()
        end = loop.time() + LOOK_S
        while not self._wake.is_set() and loop.time() < end:
            try:
                await asyncio.wait_for(self._wake.wait(), max(0.0, end - loop.time()))
            except TimeoutError:
                return
        self._wake.clear()

    async def _publish(self, wanted: Wanted | None) -> None:
        if wanted is None:
            return
        applied = self._applied
        generation = applied.generation if applied and applied.uid == wanted.uid else None
        facts = self.runtime.facts()
        if not self._heard.is_set():
            behind = f"settings of generation {generation} are kept ones: the API server is away"
            facts = replace(facts, behind=behind)
        try:
            await asyncio.to_thread(self._status.write, facts, wanted.uid, generation)
        except ApiError as error:
            _log.warning("the status was not written: %s", error)

    async def _follow_records(self) -> None:
        """Binds the sockets of pods whose volumes are published, as soon as it can serve them."""
        boot = records.boot_id()
        folder = records.records_dir(self._options.state_dir)
        seen, looks = -1, 0
        while True:
            stamp = _stamp(folder)
            looks += 1
            if self.runtime.serving and (stamp != seen or looks >= RECORDS_ALL):
                found = await asyncio.to_thread(records.read_all, self._options.state_dir, boot)
                fabric = self._identity.fabric
                pods = [of_record(record) for record in found if record.fabric == fabric]
                await self.runtime.sockets.follow(pods)
                seen, looks = stamp, 0
            await asyncio.sleep(RECORDS_S)

    async def _tend_nics(self) -> None:
        """Apart from the settings: one change may take half a minute until it is confirmed."""
        while True:
            wanted = self._wanted
            if wanted is not None:
                await self.nics.turn(wanted.spec.nics)
            elif self._heard.is_set():  # the node has left its fabric
                await self.nics.turn(Nics())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._nics_wake.wait(), LOOK_S)
            self._nics_wake.clear()

    async def _refresh_statistics(self) -> None:
        hub: Hub = self.runtime.hub
        while True:
            await asyncio.sleep(STATISTICS_S)
            for group, part in hub.parts.items():
                if part.epoch is not None:
                    self._reporter.refresh(group, part.epoch.number, part.epoch.handle)


def _stamp(folder: Path) -> int:
    """Changes when a record is added or removed."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0
