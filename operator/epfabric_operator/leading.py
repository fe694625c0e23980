"""What the process that leads does until it is stopped or leads no more; run by main.py."""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from kubernetes import client

from epfabric_operator import handlers
from epfabric_operator.config import Config
from epfabric_operator.election import Election
from epfabric_operator.epnodes import EPNodeCache
from epfabric_operator.events import EventWriter
from epfabric_operator.kube import Kube
from epfabric_operator.loop import Loop
from epfabric_operator.metrics import Metrics
from epfabric_operator.nodes import NodeCache
from epfabric_operator.observe import Observer
from epfabric_operator.plan import PlanConfig
from epfabric_operator.reconcile import Reconciler
from epfabric_operator.signer import Places, Signer
from epfabric_operator.tenure import Tenure
from epfabric_operator.webhook_certificate import WebhookCertificate
from epfabric_operator.worklist import EVERYTHING, Work, Worklist

log = logging.getLogger(__name__)
STOPPED, FAULT, LOST = 0, 1, 3
STUCK_S = 120.0
JOIN_S = 10.0
LOOK_S = 0.2
SETTLE_S = 1.0  # agents come and change together


class Leading:
    """The threads of one leader: its Lease, the nodes, kopf and the loop."""

    def __init__(
        self,
        config: Config,
        api: client.ApiClient,
        election: Election,
        tenure: Tenure,
        metrics: Metrics,
    ) -> None:
        """`api` is fenced by the tenure."""
        self._config = config
        self._api = api
        self._kube = Kube(api, write_s=tenure.write_s)
        self._election = election
        self._tenure = tenure
        self._metrics = metrics
        self._loop: Loop | None = None
        self._over = threading.Event()
        self._failed = False

    def run(self, stop: threading.Event, policies: str | None) -> int:
        """Exit status. LOST comes at once, whatever the threads do: they can write no more."""
        lease = self._thread("lease", self._election.keep)
        writers: list[threading.Thread] = []
        code = self._work(stop, policies, writers)
        if code == LOST:
            log.error("this process leads no more")
            return LOST
        self._over.set()
        for thread in (lease, *writers):
            thread.join(JOIN_S)
        self._tenure.end()
        if any(thread.is_alive() for thread in (lease, *writers)):
            log.warning("a request still runs: the Lease is left to run out")
        else:
            self._election.release()
        if code == STOPPED:
            log.info("stopped")
        return code

    def stuck(self) -> str | None:
        # One look at thousands of new nodes takes minutes; it goes on as long as it is answered.
        if self._loop and time.monotonic() - max(self._loop.beat, self._kube.answered) > STUCK_S:
            return f"nothing was reconciled for {STUCK_S:.0f} s"
        return None

    def _work(
        self, stop: threading.Event, policies: str | None, writers: list[threading.Thread]
    ) -> int:
        kube, config, worklist = self._kube, self._config, Worklist()
        events = EventWriter(kube, config.identity)
        nodes = NodeCache(Kube(self._api), lambda: worklist.add(EVERYTHING))
        epnodes = EPNodeCache(Kube(self._api), partial(_look_at, worklist))
        observer = Observer(kube, config.nodes_namespace, policies, nodes, epnodes)
        wanted = PlanConfig(
            config.agent_image,
            config.nodes_namespace,
            config.agent_port,
            policies,
            config.agent_priority_class,
            config.agent_pull_policy,
            config.kubelet_root,
        )
        reconciler = Reconciler(kube, observer, wanted, events, self._metrics)
        places = Places(config.namespace, config.nodes_namespace)
        webhook = WebhookCertificate(kube, config.namespace) if config.signs_webhook else None
        life = datetime.timedelta(seconds=config.certificate_seconds)
        signer = Signer(kube, places, events, self._metrics, webhook, life)
        loop = Loop(worklist, reconciler, signer, config.resync_seconds, self._metrics)
        if not policies and config.injection == "policy":
            log.warning("no MutatingAdmissionPolicy here: pods are not injected")
        self._thread("nodes", nodes.run)
        self._thread("epnodes", epnodes.run)
        while not (nodes.synced.is_set() and epnodes.synced.is_set()):
            if (code := self._ended(stop)) is not None:
                return code
        self._loop = loop
        writers.append(self._thread("loop", loop.run))

        def watch(over: threading.Event) -> None:
            handlers.run(worklist, self._api, config.identity, over)

        self._thread("kopf", watch)
        while (code := self._ended(stop)) is None:
            pass
        return code

    def _ended(self, stop: threading.Event) -> int | None:
        """After a moment: the exit status if there is no reason to go on, else None."""
        if stop.wait(LOOK_S):
            return STOPPED
        if self._tenure.left_s() <= 0:
            return LOST
        return FAULT if self._failed else None

    def _thread(self, name: str, act: Callable[[threading.Event], object]) -> threading.Thread:
        def body() -> None:
            try:
                act(self._over)
            except Exception:
                log.exception("%s failed", name)
            # The Lease's thread may end; the tenure says what that means.
            self._failed |= name != "lease" and not self._over.is_set()

        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        return thread


def _look_at(worklist: Worklist, fabric: str | None) -> None:
    work = EVERYTHING if fabric is None else Work("fabric", fabric)
    worklist.add(work, after_s=SETTLE_S)
