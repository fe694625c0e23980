"""`epfabric-operator`: elects a leader, then watches and reconciles until stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial

from epfabric_crds import names

from epfabric_operator import logs, metrics_server, webhook
from epfabric_operator.access import Access
from epfabric_operator.chores import command
from epfabric_operator.config import Config, parse
from epfabric_operator.election import Election
from epfabric_operator.fence import fence
from epfabric_operator.health import HealthServer
from epfabric_operator.kube import ApiError, Kube, load_client
from epfabric_operator.leading import FAULT, LOST, STOPPED, Leading
from epfabric_operator.metrics import Metrics
from epfabric_operator.serving import Contexts, FromFolder, SelfSigned
from epfabric_operator.tenure import Tenure, Terms

log = logging.getLogger("epfabric_operator")
NO_CLUSTER = 4
START_SECONDS = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in command.CHORES:
        return command.main(words)
    if words[:1] == ["webhook"]:
        return webhook.main(words[1:])
    config = parse(words)
    logs.configure(config.log_format, config.log_level)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        code = operate(config, stop)
    except ApiError as error:
        log.error("%s", error)
        code = STOPPED if stop.is_set() else NO_CLUSTER
    if code == LOST:
        # No thread and nothing at the interpreter's end may hold it up.
        logging.shutdown()
        os._exit(code)
    return code


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


def certificate(config: Config) -> Contexts:
    if config.metrics_certificate:
        return FromFolder(config.metrics_certificate)
    return SelfSigned([f"epfabric-operator-metrics.{config.namespace}.svc"])


def operate(config: Config, stop: threading.Event) -> int:
    """Wait for the cluster and for the Lease, then lead. Exit status; raises ApiError."""
    terms = Terms(config.lease_seconds)
    tenure = Tenure(terms)
    kube = Kube(load_client(config.kubeconfig, config.identity), terms.request_s)
    fenced = load_client(config.kubeconfig, config.identity)
    fence(fenced, tenure)
    election = Election(kube, config.namespace, config.identity, terms, tenure)
    metrics = Metrics(config, lambda: tenure.left_s() > 0)
    leading = Leading(config, fenced, election, tenure, metrics)
    policies = wait_for_cluster(kube, stop)
    if config.injection == "webhook":
        policies = None
    try:
        probes = {"/healthz": leading.stuck, "/readyz": lambda: None}
        health = HealthServer(config.health_port, probes)
        scrapes = metrics_server.serve(
            config.metrics_port,
            certificate(config),
            Access(kube, metrics_server.PATH),
            metrics.text,
        )
    except OSError as error:
        ports = f"--health-port {config.health_port} and --metrics-port {config.metrics_port}"
        log.error("cannot listen on %s: %s", ports, error)
        return FAULT
    health.start()
    scrapes.start("metrics")
    log.info("health on port %s, metrics on port %s", health.port, scrapes.port)
    code = FAULT
    try:
        code = leading.run(stop, policies) if election.acquire(stop) else STOPPED
    finally:
        health.close()
        scrapes.close()
        if code != LOST:  # that one must not wait for a collector
            metrics.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
