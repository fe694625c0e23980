"""The operator's one loop: takes what is due and reconciles it; a thread of leading.py."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from epfabric_operator.kube import ApiError
from epfabric_operator.metrics import Metrics
from epfabric_operator.reconcile import Reconciler, Unfinished, names_to_visit
from epfabric_operator.signer import Signer
from epfabric_operator.worklist import AUTHORITY, EVERYTHING, Work, Worklist

log = logging.getLogger(__name__)


class Loop:
    def __init__(
        self,
        worklist: Worklist,
        reconciler: Reconciler,
        signer: Signer,
        resync_s: float,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worklist = worklist
        self._reconciler = reconciler
        self._signer = signer
        self._resync_s = resync_s
        self._metrics = metrics
        metrics.queue(worklist.waiting)
        self._clock = clock
        self.beat = clock()

    def run(self, stop: threading.Event) -> None:
        """Works until stopped; then it ends what it has begun, and begins nothing more."""
        resync = self._clock()
        while not stop.is_set():
            self.beat = self._clock()
            if self.beat >= resync:
                self._worklist.add(EVERYTHING, after_s=0)
                self._worklist.add(AUTHORITY, after_s=0)
                resync = self.beat + self._resync_s
            # A short wait, so that a stop is seen soon.
            self.step(self._worklist.take(min(1.0, self._resync_s)), stop)

    def step(self, works: list[Work], stop: threading.Event) -> None:
        fabrics = []
        for work in works:
            if stop.is_set():
                return
            if work.kind == "csr":
                self._try(work, partial(self._signer.answer, work.name))
            elif work == AUTHORITY:
                self._try(work, self._signer.refresh)
            else:
                fabrics.append(work)
        if fabrics:
            self._fabrics(fabrics, stop)

    def _fabrics(self, works: list[Work], stop: threading.Event) -> None:
        begin = self._clock()
        try:
            world = self._reconciler.observe()
        except ApiError as error:
            log.warning("cannot read the cluster: %s; trying again", error)
            self._again(works)
            return
        except Exception:
            # One object that cannot be read must not end the operator.
            log.exception("cannot understand the cluster; trying again")
            self._again(works)
            return
        self._metrics.looked()
        self._metrics.only(world.fabrics)
        if EVERYTHING in works:
            self._worklist.done(EVERYTHING)
            works = [Work("fabric", name) for name in names_to_visit(world)]
        for work in sorted(works):
            if not stop.is_set():
                self._try(work, partial(self._reconciler.reconcile, work.name, world))
        seconds = self._clock() - begin
        log.debug("looked at %d fabrics, %d nodes in %.2f s", len(works), len(world.nodes), seconds)

    def _again(self, works: list[Work]) -> None:
        for work in works:
            self._worklist.failed(work)

    def _try(self, work: Work, act: Callable[[], object]) -> None:
        begin, result = self._clock(), "done"
        try:
            act()
            self._worklist.done(work)
        except (ApiError, Unfinished) as error:
            log.warning("%s %s: %s; trying again", work.kind, work.name, error)
            self._worklist.failed(work)
            result = "retry"
        except Exception:
            # One object must not stop the others; the traceback is the bug report.
            log.exception("%s %s failed; trying again", work.kind, work.name)
            self._worklist.failed(work)
            result = "fault"
        self._metrics.reconciled(work.kind, result, self._clock() - begin)
