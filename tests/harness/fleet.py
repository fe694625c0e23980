"""Thousands of nodes, agents and pods that only the API server knows; for scale tests and benches.

The operator sees what it would see of real ones: Nodes as large as a busy kubelet makes them, whose
status goes on changing, agents that answer an EPFabricNode with a Lease and a status, and pods that
opted in. Nothing runs on them. One watch stands for those that each agent has of its own object.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from epfabric_crds import names
from harness import fleet_objects as objects
from harness.fleet_client import APPLY, MERGE, METADATA, FleetClient, Json, Refused
from harness.fleet_objects import Shape

EPNODES = f"/apis/{names.API_VERSION}/{names.NODES}"
NODES = "/api/v1/nodes"
WRITERS = 12  # that make many objects
ANSWERERS = 8
TICK_S = 0.2
RETRY_S = 1.0
MOST_FAULTS = 10
FULL = "application/json"
T = TypeVar("T")


class Fleet:
    """Use as a context; `start()` lets agents and kubelets speak. Writes are an administrator's."""

    def __init__(
        self, kubeconfig: Path, shape: Shape, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.shape = shape
        self.round_s = 0.0
        """How long the last round of the agents' Leases took."""
        self.broken = ""
        """Why its agents and kubelets speak no more."""
        self._say = say
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="fleet")
        self._thread.start()
        self._tasks: list[asyncio.Task[None]] = []
        self._api = self._run(self._connect(kubeconfig), 30)
        self._mine = frozenset(shape.names)
        self._agents: dict[str, tuple[str, int]] = {}  # uid and generation that each has answered

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._end(), 60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def again(self) -> int:
        """Requests that had to be sent once more."""
        return self._api.again

    def make_nodes(self, bound_s: float) -> None:
        async def make(index: int) -> None:
            await self._api.ask("POST", NODES, objects.node(self.shape, index))

        self._run(self._each(make, range(self.shape.nodes), "nodes"), bound_s)

    def make_pods(self, count: int, bound_s: float) -> None:
        where = f"/api/v1/namespaces/{self.shape.jobs}/pods"

        async def make(index: int) -> None:
            await self._api.ask("POST", where, objects.pod(self.shape, index))

        self._run(self._each(make, range(count), "pods"), bound_s)

    def start(self) -> None:
        """From now on agents answer, and Leases and nodes' statuses go on changing."""
        self._run(self._begin(), 10)

    def unmake(self, bound_s: float) -> None:
        """Nodes and pods go; with the fabric's EPFabricNodes also the agents' Leases."""

        async def drop(name: str) -> None:
            with contextlib.suppress(Refused):
                await self._api.ask("DELETE", f"{NODES}/{name}", accept=FULL)

        async def go() -> None:
            where = f"/api/v1/namespaces/{self.shape.jobs}/pods"
            await self._api.ask("DELETE", where, accept=FULL, query={"gracePeriodSeconds": "0"})
            await self._each(drop, self.shape.names, "")

        self._run(go(), bound_s)

    # --- what has to be true

    def node_bytes(self) -> int:
        """Of one Node, as it is stored."""
        path = f"{NODES}/{self.shape.name(0)}"
        return len(json.dumps(self._run(self._api.ask("GET", path, accept=FULL), 30)))

    def injected(self, bound_s: float) -> int:
        """How many of the pods admission gave our volume."""
        return self._run(self._injected(), bound_s)

    def faults(self, bound_s: float) -> list[str]:
        """Nodes that do not have what they should, when all are Ready; at most ten."""
        return self._run(self._faults(), bound_s)

    async def _injected(self) -> int:
        count = 0
        where = f"/api/v1/namespaces/{self.shape.jobs}/pods"
        async for page in self._api.pages(where, FULL):
            for pod in page["items"]:
                drivers = [v.get("csi", {}).get("driver") for v in pod["spec"].get("volumes", ())]
                count += names.CSI_DRIVER in drivers
        return count

    async def _faults(self) -> list[str]:
        uids: dict[str, str] = {}
        found: list[str] = []
        wanted = {names.FABRIC_LABEL: self.shape.fabric, names.GPUS_LABEL: str(objects.GPUS)}
        async for page in self._api.pages(NODES):
            for meta in (item["metadata"] for item in page["items"]):
                if meta["name"] not in self._mine:
                    continue
                uids[meta["name"]] = meta["uid"]
                labels = meta["labels"]
                if any(labels.get(key) != value for key, value in wanted.items()):
                    found.append(f"node {meta['name']}: not the labels {wanted}")
        seen = set()
        async for page in self._api.pages(EPNODES, FULL):
            for item in page["items"]:
                if (name := item["metadata"]["name"]) in self._mine:
                    seen.add(name)
                    found += _faults_of(item, self.shape.fabric, uids.get(name))
        found += [f"node {name} has no EPFabricNode" for name in sorted(uids.keys() - seen)]
        if len(uids) != self.shape.nodes:
            found.append(f"{len(uids)} nodes of {self.shape.nodes}")
        return found[:MOST_FAULTS]

    # --- agents and kubelets

    async def _connect(self, kubeconfig: Path) -> FleetClient:
        return FleetClient(kubeconfig)

    async def _begin(self) -> None:
        self._queue: asyncio.Queue[Json] = asyncio.Queue()
        ways: list[Coroutine[Any, Any, None]] = [
            self._follow(),
            *(self._answer() for _ in range(ANSWERERS)),
            self._paced(self._renew, lambda: list(self._agents), self.shape.renew_s, True),
            self._paced(self._beat, lambda: self.shape.names, self.shape.beat_s, False),
        ]
        self._tasks = [asyncio.create_task(way) for way in ways]
        for task in self._tasks:
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = repr(error)
            self._say(f"the fleet is broken: {error!r}")

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._api.close()

    async def _follow(self) -> None:
        while True:
            try:
                async for page in self._api.pages(EPNODES):
                    version = page["metadata"]["resourceVersion"]
                    for item in page.get("items") or ():
                        self._see("ADDED", item["metadata"])
                async for event in self._api.watch(EPNODES, version):
                    self._see(event["type"], event["object"]["metadata"])
            except Refused as fault:
                self._say(f"{fault}; once more")
                await asyncio.sleep(RETRY_S)

    def _see(self, kind: str, meta: Json) -> None:
        if meta["name"] not in self._mine:
            return
        if kind == "DELETED":
            self._agents.pop(meta["name"], None)
        elif self._agents.get(meta["name"]) != (meta["uid"], meta["generation"]):
            self._agents[meta["name"]] = (meta["uid"], meta["generation"])
            self._queue.put_nowait(meta)

    async def _answer(self) -> None:
        """What each agent does that has a new or changed EPFabricNode."""
        while True:
            meta = await self._queue.get()
            name = meta["name"]
            with contextlib.suppress(Refused):  # gone by now; a new one comes as an event
                await self._renew(name)
                body = objects.agent_status(name, meta["generation"])
                await self._apply(f"{EPNODES}/{name}/status", body)

    async def _renew(self, name: str) -> None:
        if known := self._agents.get(name):
            body = objects.lease(self.shape, name, known[0])
            base = f"/apis/coordination.k8s.io/v1/namespaces/{self.shape.leases}/leases"
            await self._apply(f"{base}/{body['metadata']['name']}", body)

    async def _apply(self, path: str, body: Json) -> None:
        query = {"fieldManager": names.AGENT_MANAGER, "force": "true"}
        await self._api.ask("PATCH", path, body, APPLY, query=query)

    async def _beat(self, name: str) -> None:
        body = {"status": {"conditions": [objects.ready()]}}
        await self._api.ask("PATCH", f"{NODES}/{name}/status", body, MERGE, METADATA)

    async def _paced(
        self,
        act: Callable[[str], Awaitable[None]],
        whom: Callable[[], Sequence[str]],
        period_s: float,
        told: bool,
    ) -> None:
        """Once for each in every period, spread evenly; rounds last longer where that is slow."""

        async def one(name: str) -> None:
            with contextlib.suppress(Refused):  # gone
                await act(name)

        while True:
            begin, todo = time.monotonic(), list(whom())
            share = max(1, round(len(todo) * TICK_S / period_s))
            for number, first in enumerate(range(0, len(todo), share), 1):
                await asyncio.gather(*map(one, todo[first : first + share]))
                due = begin + period_s * min(1.0, number * share / len(todo))
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            await asyncio.sleep(0 if todo else TICK_S)
            if todo and told:
                self.round_s = time.monotonic() - begin

    # --- the loop

    def _run(self, act: Coroutine[Any, Any, T], bound_s: float) -> T:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result(bound_s)

    async def _each(
        self, act: Callable[[Any], Awaitable[None]], items: Iterable[Any], what: str
    ) -> None:
        todo, done = iter(items), itertools.count(1)

        async def work() -> None:
            for item in todo:
                await act(item)
                if (number := next(done)) % 1000 == 0 and what:
                    self._say(f"{number} {what}")

        await asyncio.gather(*(work() for _ in range(WRITERS)))


def _faults_of(item: Json, fabric: str, uid: str | None) -> list[str]:
    name, spec, status = item["metadata"]["name"], item["spec"], item.get("status") or {}
    found = []
    if spec.get("fabric") != fabric or spec.get("nodeUid") != uid:
        found.append(f"epfabricnode {name}: not of this fabric and node")
    ready = [c["status"] for c in status.get("conditions", ()) if c["type"] == "Ready"]
    if ready != ["True"]:
        found.append(f"epfabricnode {name}: Ready is {ready}")
    if status.get("observedGeneration") != item["metadata"]["generation"]:
        found.append(f"epfabricnode {name}: its agent has seen another generation")
    return found
