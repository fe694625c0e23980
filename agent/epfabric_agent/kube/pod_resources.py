"""Asks the kubelet which GPUs it gave to the pods' containers; for session.gpus.

A kubelet takes 100 calls a second of all its clients together, 10 at once (KEP-606), and refuses
the others. So however many ranks ask, one query is under way at a time, and its answer serves all.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from epfabric_agent.pods import Pod
from epfabric_agent.proto import podresources_pb2 as api
from epfabric_agent.proto import podresources_pb2_grpc
from epfabric_agent.session.gpus import Held, KubeletSilent, is_uuid

MAX_ANSWER_BYTES = 16 << 20  # as much as kubelets' own clients take: it speaks of all pods
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # a socket that is made anew is a new connection
    ("grpc.initial_reconnect_backoff_ms", 200),  # a kubelet that starts is found within the bound
]
_NONE = Held(frozenset(), frozenset())


@dataclass(frozen=True)
class Pace:
    answer_s: float = 2.0  # for which a rank waits, and for which a query is tried
    kept_s: float = 1.0  # for which an answer serves those who find in it what they ask for
    pause_s: float = 0.25  # from the beginning of one query to the next one's
    silent_s: float = 10.0  # for which nobody waits again after a query without an answer


@dataclass(frozen=True)
class _Said:
    """What came of the last query; `until`: by the loop's clock."""

    query: int
    until: float
    held: Mapping[tuple[str, str], Held] = field(default_factory=dict)
    silent: str = ""


class PodResources:
    def __init__(self, path: Path, pace: Pace = Pace()) -> None:
        """`path`: the kubelet's socket, which may be absent."""
        self._path = path
        self._pace = pace
        self._begun = 0  # queries
        self._next = 0.0  # when one may begin
        self._asking: asyncio.Task[None] | None = None
        self._said = _Said(0, 0.0)

    async def __call__(self, pod: Pod, enough: Callable[[Held], bool]) -> Held | None:
        """None where there is no such socket. What is not enough was asked for after this call.

        Raises KubeletSilent.
        """
        if not self._path.exists():
            return None
        try:
            async with asyncio.timeout(self._pace.answer_s):
                return await self._held(pod, enough)
        except TimeoutError:
            raise KubeletSilent(f"no answer in {self._pace.answer_s:g} s") from None

    async def _held(self, pod: Pod, enough: Callable[[Held], bool]) -> Held:
        """Waits for two queries at most: for one that was under way, and one that began since."""
        before = self._begun
        while True:
            said = self._said
            since = said.query > before
            if since or asyncio.get_running_loop().time() < said.until:
                if said.silent:
                    raise KubeletSilent(said.silent)
                held = said.held.get((pod.namespace, pod.name), _NONE)
                if since or enough(held):
                    return held
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            # It is everyone's: a rank that goes does not end it.
            await asyncio.shield(self._asking)

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            held = held_by(await self._list(loop.time() + self._pace.answer_s))
            self._said = _Said(self._begun, loop.time() + self._pace.kept_s, held)
        except grpc.RpcError as error:
            why = f"{error.code().name}: {error.details()}"
            self._said = _Said(self._begun, loop.time() + self._pace.silent_s, silent=why)
        finally:
            self._asking = None

    async def _list(self, end: float) -> api.ListPodResourcesResponse:
        """Again while the kubelet has too many calls."""
        loop = asyncio.get_running_loop()
        async with grpc.aio.insecure_channel(f"unix:{self._path}", options=_OPTIONS) as channel:
            stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
            while True:
                await asyncio.sleep(self._next - loop.time())
                self._next = loop.time() + self._pace.pause_s
                self._begun += 1
                try:
                    answer: api.ListPodResourcesResponse = await stub.List(
                        api.ListPodResourcesRequest(),
                        timeout=end - loop.time(),
                        wait_for_ready=True,
                    )
                    return answer
                except grpc.RpcError as error:
                    busy = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                    if not busy or self._next >= end:
                        raise


def held_by(answer: api.ListPodResourcesResponse) -> dict[tuple[str, str], Held]:
    """What containers have of all that the kubelet gave, by their pod's namespace and name."""
    uuids: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    others: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for one in answer.pod_resources:
        pod = one.namespace, one.name
        for container in one.containers:
            for given in container.devices:
                named = {name for name in given.device_ids if is_uuid(name)}
                uuids[pod] |= named
                if "gpu" in given.resource_name and len(named) < len(given.device_ids):
                    others[pod].add(given.resource_name)
            for claimed in container.dynamic_resources:
                drivers = {device.driver_name for device in claimed.claim_resources}
                others[pod] |= {driver for driver in drivers if "gpu" in driver}
    return {
        pod: Held(frozenset(uuids[pod]), frozenset(others[pod]))
        for pod in uuids.keys() | others.keys()
    }
