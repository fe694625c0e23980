"""Events about pods whose requests were refused for a limit; told by kube.group_report.

`kubectl describe pod` shows them. A pod may ask as often as it likes: the same is written at most
once a minute, and what nobody could write is dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from epfabric_agent.kube import events
from epfabric_agent.kube.api import Api
from epfabric_agent.pods import Pod

REASONS = {"tenant": "TenantLimit", "quota": "FabricLimit"}
AGAIN_S = 60.0
MOST = 64  # that wait to be written


class PodEvents:
    def __init__(self, api: Api, node: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._node = node
        self._clock_s = clock_s
        self._told: dict[tuple[str, str], float] = {}
        self._waiting: asyncio.Queue[tuple[Pod, str, str]] = asyncio.Queue(MOST)

    def refused(self, pod: Pod, code: str, message: str) -> None:
        """Never blocks. Other codes than those of limits are the pod's own business."""
        now = self._clock_s()
        self._told = {key: at for key, at in self._told.items() if now - at < AGAIN_S}
        key = (pod.uid, code)
        if code not in REASONS or not pod.uid or key in self._told or self._waiting.full():
            return
        self._told[key] = now
        self._waiting.put_nowait((pod, code, message))

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            pod, code, message = await self._waiting.get()
            about = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
            }
            write = partial(events.write, self._api, self._node, about, warning=True)
            tell = partial(write, reason=REASONS[code], note=message, action="Refuse")
            await asyncio.to_thread(tell)
