"""Owns the native core: makes it for its settings, replaces it, carries its events to groups.

Used by runtime. The native module is loaded late, so that `--help` and `pki` need none.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from epfabric_crds import Settings

from epfabric_agent import budget
from epfabric_agent.groups.hub import Hub
from epfabric_agent.topology.transport import Choice, Port

if TYPE_CHECKING:
    from epfabric_agent._native import Core

# Libraries that libfabric loads would else take over SIGTERM and SIGSEGV when they are loaded.
QUIET = ("IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CoreSettings:
    """What a core is made with; a change of it needs a new core."""

    provider: str
    ports: tuple[Port, ...]
    drain_batch: int
    max_inflight: int
    max_inflight_bytes: int
    adaptive: bool
    packing: int
    early_pop: bool
    idle: str
    histogram_scale: int
    nics_per_gpu: int
    qp_selection: str
    atomics: str


def core_settings(settings: Settings, choice: Choice) -> CoreSettings:
    proxies = settings.proxies
    stripes = settings.high_throughput
    return CoreSettings(
        provider=choice.provider,
        ports=choice.ports,
        drain_batch=min(proxies.drain_batch, 64),
        max_inflight=proxies.max_inflight,
        max_inflight_bytes=proxies.max_inflight_bytes,
        adaptive=proxies.adaptive,
        packing=settings.low_latency.packing,
        early_pop=settings.low_latency.early_pop,
        idle=proxies.idle,
        histogram_scale=max(settings.telemetry.histogram_scale, 0),
        nics_per_gpu=stripes.nics_per_gpu,
        qp_selection=stripes.qp_selection,
        atomics=settings.atomics,
    )


class CoreEdge:
    def __init__(
        self, address: str, hub: Hub, look_again: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """`look_again` is called when the ports of the core's NICs are other than they were."""
        os.environ |= dict.fromkeys(QUIET, "1")  # before anything loads the native module
        self._address = address
        self._hub = hub
        self._look_again = look_again
        self._port_fds: list[int] = []
        self._event_fd = -1
        self._tasks: set[asyncio.Task[None]] = set()
        self.current: Core | None = None
        self.settings: CoreSettings | None = None

    @property
    def lines(self) -> int:
        """NICs over which a proxy's verbs links go; 0 without verbs."""
        now = self.settings
        return min(now.nics_per_gpu, len(now.ports)) if now is not None and self.verbs else 0

    @property
    def spares(self) -> int:
        """NICs that stand by for a proxy's own, at most."""
        now = self.settings
        return int(now is not None and self.verbs and len(now.ports) > 1 and now.nics_per_gpu == 1)

    @property
    def ports(self) -> tuple[Port, ...]:
        """The NICs' ports that the core has opened, in its order."""
        return self.settings.ports if self.settings is not None else ()

    @property
    def pins(self) -> bool:
        """Whether NICs pin what proxies make; over tcp it is touched as it is used."""
        return self.settings is not None and bool(self.settings.ports)

    @property
    def verbs(self) -> bool:
        return self.pins and self.settings is not None and not self.settings.provider

    async def use(self, settings: CoreSettings | None) -> None:
        """Closes the core and makes one with `settings`. Raises NativeError where it cannot."""
        from epfabric_agent._native import Core, NativeError

        loop = asyncio.get_running_loop()
        if self.current is not None:
            for fd in (self._event_fd, *self._port_fds):
                loop.remove_reader(fd)
            closing, self.current, self.settings = self.current, None, None
            try:
                await asyncio.to_thread(closing.close)
            except NativeError as error:
                _log.error("the old core did not end cleanly: %s", error)
        if settings is None:
            return
        address = self._address
        self.current = await asyncio.to_thread(lambda: Core(address=address, **asdict(settings)))
        self.settings = settings
        for device, (limits, _) in self.current.nics().items():
            _log.info("RDMA device %s", budget.spoken(device, limits))
        self._event_fd = self.current.event_fd()
        loop.add_reader(self._event_fd, self._take_events)
        self._port_fds = self.current.port_fds()
        for fd in self._port_fds:
            loop.add_reader(fd, self._take_port_news)

    def _take_events(self) -> None:
        if self.current is None:
            return
        for event in self.current.events():
            _log.warning("the core says: %s: %s", event.kind, event.detail)
            for part in self._hub.parts.values():
                if part.epoch is not None and part.epoch.handle == event.group:
                    self._begin(part.hear(event))

    def _take_port_news(self) -> None:
        if self.current is None:
            return
        news = self.current.port_news()
        for text in news:
            _log.warning("%s", text)
        if news:
            self._begin(self._look_again())

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
