"""Runs the agent by a manifest until it is told to stop; for main."""

from __future__ import annotations

import asyncio
import datetime
import logging
from pathlib import Path

from epfabric_agent.groups.hub import NoReporter
from epfabric_agent.manifest import nics
from epfabric_agent.manifest.read import Manifest, split_endpoint
from epfabric_agent.nic.duty import NicDuty
from epfabric_agent.options import Options
from epfabric_agent.peers.client import Agent, PeerClient
from epfabric_agent.pki import authority
from epfabric_agent.pki.check import check
from epfabric_agent.pki.identity import NodeIdentity
from epfabric_agent.pods import Pod
from epfabric_agent.runtime import Runtime
from epfabric_agent.topology.machine import Machine

NAMESPACE = "local"
LOOK_S = 10.0
_log = logging.getLogger(__name__)


class AskPeers:
    """Finds a group's coordinator by asking every peer. Raises OtherVersion."""

    def __init__(self, peers: tuple[Agent, ...], own: str) -> None:
        self._others = [peer for peer in peers if peer.node != own]

    async def __call__(self, client: PeerClient, group: str) -> Agent | None:
        asked = (client.coordinates(peer, group) for peer in self._others)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for peer, answer in zip(self._others, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer:
                return peer
        return None


def group_pod(group: str, folder: Path) -> Pod:
    """Local processes that share one socket stand for the pods of a group."""
    return Pod(
        key=f"{NAMESPACE}/{group}",
        namespace=NAMESPACE,
        name="",
        group=group,
        owner=None,
        directory=folder / group,
    )


async def run(manifest: Manifest, options: Options, stop: asyncio.Event) -> None:
    """Raises OSError, PkiError, NativeError at start; afterwards it only ends by `stop`."""
    own = manifest.peer(options.node)
    address, port = split_endpoint(own.endpoint, f"the endpoint of {own.node}")
    identity = NodeIdentity(options.node, manifest.fabric, options.address or address)
    if options.fabric not in ("", manifest.fabric):
        raise ValueError(
            f"--fabric is {options.fabric}, but the manifest's EPFabric is named {manifest.fabric}"
        )
    credentials = authority.load(options.pki, options.node)
    check(credentials, identity, datetime.datetime.now(datetime.UTC))
    runtime = Runtime(
        identity,
        lambda: credentials,
        NoReporter(),
        AskPeers(manifest.peers, options.node),
        Machine(),
        changed=lambda: None,
    )
    try:
        duty = nics.duty(
            options.state_dir, identity.address, lambda: runtime.sessions, runtime.quiet
        )
        await _tend(duty, runtime, manifest)
        await runtime.listen(port if options.port is None else options.port)
        await runtime.apply(manifest.settings)
        if not runtime.serving:
            raise ValueError(f"nothing can be served: {runtime.facts().choice.reason}")
        pods = [group_pod(group, options.sockets) for group in manifest.groups]
        for pod in pods:
            pod.directory.mkdir(parents=True, exist_ok=True)
        await runtime.sockets.follow(pods)
        for pod in pods:
            _log.info("group %s: ranks attach at %s/agent.sock", pod.group_key, pod.directory)
        while not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), LOOK_S)
            except TimeoutError:
                await runtime.look_again()
                await _tend(duty, runtime, manifest)
    finally:
        await runtime.close()


async def _tend(duty: NicDuty, runtime: Runtime, manifest: Manifest) -> None:
    try:
        found = await duty.turn(manifest.settings.nics)
    except OSError as error:
        _log.warning("the NICs are left as they are: %s", error)
        return
    if found != runtime.nics:
        log = _log.info if found.holds else _log.warning
        log("NICs: %s: %s", found.reason, found.message)
    runtime.nics = found
