"""`epfabric-operator`: elects a leader, then watches and reconciles until stopped."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from epfabric_crds import names
from kubernetes import client

from epfabric_operator import handlers, logs
from epfabric_operator.config import Config, parse
from epfabric_operator.election import Election
from epfabric_operator.events import EventWriter
from epfabric_operator.health import HealthServer
from epfabric_operator.kube import ApiError, Kube, load_client
from epfabric_operator.loop import EVERYTHING, Loop
from epfabric_operator.nodes import NodeCache
from epfabric_operator.observe import Observer
from epfabric_operator.plan import PlanConfig
from epfabric_operator.reconcile import Reconciler
from epfabric_operator.signer import Signer, load_authority
from epfabric_operator.worklist import Worklist

log = logging.getLogger("epfabric_operator")
STOPPED, FAULT, LOST, NO_CLUSTER = 0, 1, 3, 4
START_SECONDS = 60.0
STUCK_SECONDS = 120.0
JOIN_SECONDS = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    config = parse(arguments)
    logs.configure(config.log_format, config.log_level)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        api = load_client(config.kubeconfig)
        kube = Kube(api)
        policies = wait_for_cluster(kube, stop)
        return Operator(config, api, kube, policies).run(stop)
    except ApiError as error:
        log.error("%s", error)
        return STOPPED if stop.is_set() else NO_CLUSTER


def wait_for_cluster(kube: Kube, stop: threading.Event) -> str | None:
    """Wait, within bounds, until our CRDs are served. Says in which version policies are."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            served = {r["name"] for r in _resources(kube, names.GROUP, names.VERSION)}
            if {names.FABRICS, names.NODES, names.GROUPS} <= served:
                return next(filter(partial(_has_policies, kube), ("v1", "v1beta1")), None)
            error = ApiError(0, "NoCRDs", "the CRDs of epfabric.io are missing: install the chart")
        except ApiError as caught:
            error = caught
        if stop.is_set() or time.monotonic() > end or error.status in (401, 403):
            raise error
        log.info("waiting: %s", error)
        stop.wait(2)


def _has_policies(kube: Kube, version: str) -> bool:
    found = _resources(kube, "admissionregistration.k8s.io", version)
    return "mutatingadmissionpolicybindings" in {r["name"] for r in found}


def _resources(kube: Kube, group: str, version: str) -> list[dict[str, object]]:
    found = kube.get(f"/apis/{group}/{version}") or {}
    return list(found.get("resources") or ())


class Operator:
    """The threads of one process: election, nodes, kopf and the one worker."""

    def __init__(
        self, config: Config, api: client.ApiClient, kube: Kube, policies: str | None
    ) -> None:
        self._config = config
        self._api = api
        self._kube = kube
        self._policies = policies
        self._election = Election(kube, config.namespace, config.identity)
        self._loop: Loop | None = None
        self._ended: list[str] = []

    def run(self, stop: threading.Event) -> int:
        try:
            health = HealthServer(
                self._config.health_port, {"/healthz": self._stuck, "/readyz": lambda: None}
            )
        except OSError as error:
            log.error("cannot listen on --health-port %s: %s", self._config.health_port, error)
            return FAULT
        health.start()
        log.info("health on port %s", health.port)
        try:
            if not self._election.acquire(stop):
                return STOPPED
            try:
                return self._lead(stop)
            finally:
                self._election.release()
        finally:
            health.close()

    def _lead(self, stop: threading.Event) -> int:
        kube, config, worklist = self._kube, self._config, Worklist()
        events = EventWriter(kube, config.identity)
        authority = load_authority(kube, config.namespace)
        nodes = NodeCache(kube, lambda: worklist.add(EVERYTHING))
        observer = Observer(kube, config.namespace, self._policies, nodes)
        wanted = PlanConfig(config.agent_image, config.namespace, config.agent_port, self._policies)
        reconciler = Reconciler(kube, observer, wanted, events)
        signer = Signer(kube, config.namespace, authority, events)
        loop = Loop(worklist, reconciler, signer, config.resync_seconds)
        if not self._policies:
            log.warning("no MutatingAdmissionPolicy here: pods are not injected")
        over = threading.Event()
        threads = [self._thread("nodes", nodes.run, over), self._thread("lease", self._keep, over)]
        while not nodes.synced.wait(0.2) and not (stop.is_set() or over.is_set()):
            pass
        if not stop.is_set():
            self._loop = loop

            def watch(over: threading.Event) -> None:
                handlers.run(worklist, self._api, config.identity, over)

            loop.beat = time.monotonic()
            threads += [
                self._thread("loop", loop.run, over),
                self._thread("kopf", watch, over),
            ]
        while not (stop.wait(0.2) or over.is_set()):
            pass
        # Taken before the threads are told: afterwards all of them end.
        first = self._ended[:1]
        over.set()
        for thread in threads[1:]:
            thread.join(JOIN_SECONDS)
        if stop.is_set():
            log.info("stopped")
            return STOPPED
        return LOST if first == ["lease"] else FAULT

    def _keep(self, over: threading.Event) -> None:
        self._election.keep(over)

    def _thread(
        self, name: str, act: Callable[[threading.Event], None], over: threading.Event
    ) -> threading.Thread:
        def body() -> None:
            try:
                act(over)
            except Exception:
                log.exception("%s failed", name)
            finally:
                self._ended.append(name)
                over.set()

        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        return thread

    def _stuck(self) -> str | None:
        if self._loop and time.monotonic() - self._loop.beat > STUCK_SECONDS:
            return f"nothing was reconciled for {STUCK_SECONDS:.0f} s"
        return None


if __name__ == "__main__":
    sys.exit(main())
