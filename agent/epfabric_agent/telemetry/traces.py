"""Sends the barriers that the core kept as traces; started, told and ended by the agent's runtime.

A thread looks every second. The core's ring of kept barriers is the buffer in front of it: what the
collector does not take stays there, at most so much, and what is overwritten is counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from opentelemetry.sdk.trace.export import SpanExportResult

from epfabric_agent.telemetry.collector import SpanSender
from epfabric_agent.telemetry.config import TelemetryConfig
from epfabric_agent.telemetry.spans import KeptBarrier, spans_of

LOOK_S = 1.0
MOST_A_LOOK = 512
MOST_WAITING = 4096
BATCH = 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TakenKept:
    """What was taken of one group; `handle` is a number that never comes again."""

    handle: int
    position: int
    overwritten: int
    barriers: tuple[KeptBarrier, ...]


class KeptSource(Protocol):
    """Takes, of each group that runs, barriers kept since its position (0 where none is given):
    at most `limit` in all. Called from several threads, one at a time."""

    def __call__(self, positions: Mapping[int, int], limit: int) -> list[TakenKept]: ...


class Traces:
    """Takes and sends while its config has a URL."""

    def __init__(self, source: KeptSource) -> None:
        self.sent = 0
        self.lost = 0
        self._source = source
        self._lock = threading.Lock()  # the two below
        self._positions: dict[int, int] = {}
        self._waiting: deque[KeptBarrier] = deque()
        self._config: TelemetryConfig | None = None
        self._sender: _Sender | None = None

    @property
    def on(self) -> bool:
        """There is somewhere to send to."""
        return self._sender is not None

    def observe(self) -> None:
        """Takes what there is now; to be called right before a group of the core is forgotten."""
        if self._sender is not None:
            self._take(MOST_WAITING)

    def apply(self, config: TelemetryConfig, timeout_s: float) -> None:
        """Sends as `config` says from now on. Blocks for about `timeout_s` at most."""
        if config == self._config:
            return
        self.shutdown(timeout_s)
        self._config = config
        if not config.url:
            _log.info("traces are not sent: no endpoint in spec.telemetry or the environment")
            return
        _log.info("traces go to %s", config.url)
        self._sender = _Sender(self, config)

    def shutdown(self, timeout_s: float) -> None:
        """Sends what there is and ends; blocks for about `timeout_s` at most."""
        sender, self._sender, self._config = self._sender, None, None
        if sender is not None:
            sender.end(timeout_s)

    def look(self) -> None:
        """Takes as much as one look may send."""
        self._take(min(MOST_A_LOOK, MOST_WAITING - len(self._waiting)))

    def batch(self) -> list[KeptBarrier]:
        """The oldest that wait; they go on waiting until arrived()."""
        with self._lock:
            return [self._waiting[k] for k in range(min(BATCH, len(self._waiting)))]

    def arrived(self, barriers: list[KeptBarrier]) -> None:
        """These need to wait no more; those that were pushed out meanwhile wait no longer."""
        with self._lock:
            while self._waiting and any(self._waiting[0] is one for one in barriers):
                self._waiting.popleft()
                self.sent += 1

    def _take(self, limit: int) -> None:
        with self._lock:
            taken = self._source(self._positions, limit) if limit > 0 else []
            if taken:
                self._positions = {one.handle: one.position for one in taken}
            for one in taken:
                self.lost += one.overwritten
                self._waiting.extend(one.barriers)
            while len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self.lost += 1


class _Sender:
    """The thread that sends to one URL."""

    def __init__(self, traces: Traces, config: TelemetryConfig) -> None:
        self._traces = traces
        self._node = config.node
        self._resource = config.resource
        self._exporter = SpanSender(config.url, config.timeout_s)
        self._look_s = config.interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def end(self, timeout_s: float) -> None:
        self._stop.set()
        self._thread.join(timeout_s)
        self._exporter.shutdown()

    def _run(self) -> None:
        last = False
        while not last:
            last = self._stop.wait(self._look_s)
            try:
                self._traces.look()
                self._send()
            except Exception:  # else the thread would end, and all traces with it
                _log.exception("traces could not be sent this time")

    def _send(self) -> None:
        while barriers := self._traces.batch():
            spans = [span for one in barriers for span in spans_of(one, self._node, self._resource)]
            if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
                return
            self._traces.arrived(barriers)
