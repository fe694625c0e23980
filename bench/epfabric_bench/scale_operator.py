"""The operator with thousands of nodes and pods, and one large group, on a real API server.

Nodes, agents and pods are objects only (tests/harness/fleet.py); operator, chart, admission and
what a coordinator writes are real. Counts are exact and are what `verified` speaks of.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from harness.cluster import Cluster
from harness.fleet import Fleet
from harness.fleet_objects import NODE_BYTES, Shape
from harness.footprint import Footprint, writes
from harness.process import Processes, wait_until

from . import scale_group, scale_site
from .run import Run
from .series import LESS, OURS, Line

QUIET_LOOKS = 5
APPLIED_AGAIN = frozenset({"daemonsets", "mutatingadmissionpolicybindings", "configmaps"})
WAIT_S = 3600.0
SHOWN_S = 20.0
LOOK_S = 1.0


@dataclass(frozen=True)
class Site:
    run: Run
    cluster: Cluster
    fleet: Fleet

    @property
    def nodes(self) -> int:
        return self.fleet.shape.nodes

    def operator(self, number: int) -> tuple[Footprint, float]:
        """A new one, and when it was started."""
        process = scale_site.operator(self.cluster, f"operator-{number}")
        return Footprint(process), time.monotonic()


def line(case: str, metric: str, unit: str, value: float, verified: bool = True) -> Line:
    return Line(case, metric, unit, LESS, OURS, 0, verified, (float(value),))


def measure(run: Run) -> list[Line]:
    nodes, pods = run.sized("nodes", 5000, 100), run.sized("pods", 20_000, 100)
    with made(run, nodes) as site:
        operator, _ = site.operator(0)
        ranks = run.sized("ranks", 4096, 256)
        parts = (
            scale_group.measure(site.cluster, scale_site.JOBS, ranks, run.say),
            until_ready(site, operator),
            injected(site, pods),
            quiet(site, operator, "quiet"),
            recovery(site, operator),
        )
        lines = []
        for found in chain(*parts):  # it takes long: what is known is said
            run.say(f"{found.case}: {found.metric} {found.samples} {found.unit} {found.verified}")
            lines.append(found)
    return lines


@contextmanager
def made(run: Run, nodes: int) -> Iterator[Site]:
    with Processes("epfabric-scale-") as processes:
        run.say("starting etcd and an API server")
        cluster = Cluster(processes)
        cluster.start(controllers=False)
        scale_site.furnish(cluster)
        shape = Shape(nodes, scale_site.FABRIC, scale_site.LABEL, scale_site.JOBS)
        with Fleet(cluster.kubeconfig, shape, run.say) as fleet:
            run.say(f"making {nodes} nodes")
            fleet.make_nodes(WAIT_S)
            yield Site(run, cluster, fleet)


def until_ready(site: Site, operator: Footprint) -> Iterator[Line]:
    size = site.fleet.node_bytes()
    yield line("node object", "size", "B", size, size >= NODE_BYTES)
    mark = site.cluster.audit.end()
    site.fleet.start()
    begin = shown = time.monotonic()
    scale_site.apply_fabric(site.cluster)
    site.run.say(f"waiting until {site.nodes} nodes are Ready")

    def ready() -> bool:
        nonlocal shown
        if time.monotonic() - shown > SHOWN_S:
            shown = time.monotonic()
            told = f"{shown - begin:.0f} s: {sum(writes(site.cluster.audit, mark).values())} writes"
            site.run.say(f"{told}, looks of {[seconds for _, seconds in operator.looks()][-5:]} s")
        assert not site.fleet.broken, site.fleet.broken
        time.sleep(LOOK_S)  # each look costs the API server something
        return scale_site.ready_nodes(site.cluster) == site.nodes

    wait_until(ready, WAIT_S, "the fabric to be Ready", operator.process)
    case = "until Ready"
    yield line(case, "time", "s", time.monotonic() - begin)
    yield line(case, "operator_cpu", "s", operator.cpu_s())
    yield line(case, "operator_peak", "MiB", operator.peak_mib())
    done = writes(site.cluster.audit, mark)
    faults = site.fleet.faults(WAIT_S)
    for fault in faults:
        site.run.say(fault)
    refused = done.pop("refused")
    yield line(case, "writes_a_node", "count", done.total() / site.nodes, not faults)
    yield line(case, "writes_refused", "count", refused)
    for resource in sorted(done):
        yield line(case, f"writes:{resource}", "count", done[resource])


def injected(site: Site, count: int) -> Iterator[Line]:
    """The operator follows no pods: admission does all with them."""
    scale_site.await_injection(site.cluster)
    site.run.say(f"making {count} pods that opt in")
    begin = time.monotonic()
    site.fleet.make_pods(count, WAIT_S)
    yield line("pods", "made_in", "s", time.monotonic() - begin)
    found = site.fleet.injected(WAIT_S)
    yield line("pods", "with_our_volume", "count", found, found == count)


def await_looks(operator: Footprint, count: int) -> list[float]:
    """Waits for so many more whole looks; their seconds."""
    before = len(operator.looks())
    wait_until(lambda: len(operator.looks()) >= before + count, WAIT_S, "looks", operator.process)
    return [seconds for _, seconds in operator.looks()[before:]]


def quiet(site: Site, operator: Footprint, case: str) -> Iterator[Line]:
    """Resyncs with nothing to change, while Leases and nodes' statuses go on."""
    site.run.say(f"{case}: {QUIET_LOOKS} resyncs")
    await_looks(operator, 1)
    mark, cpu, begin = site.cluster.audit.end(), operator.cpu_s(), time.monotonic()
    operator.forget_peak()
    seconds = await_looks(operator, QUIET_LOOKS)
    spent, lasted = operator.cpu_s() - cpu, time.monotonic() - begin
    done = writes(site.cluster.audit, mark)
    del done["refused"]
    faults = site.fleet.faults(WAIT_S)
    yield Line(case, "resync", "s", LESS, OURS, 0, not faults, tuple(seconds))
    yield line(case, "peak", "MiB", operator.peak_mib())
    yield line(case, "operator_cpu", "cores", spent / lasted)
    yield line(case, "writes", "count", done.total(), done.total() == 0)
    yield line(case, "round_of_leases", "s", site.fleet.round_s)


def recovery(site: Site, before: Footprint) -> Iterator[Line]:
    before.process.signal(signal.SIGKILL)
    before.process.wait(30)
    site.run.say("the operator was killed; another one starts")
    mark = site.cluster.audit.end()
    operator, began = site.operator(1)
    leads = lambda: "leading as" in operator.process.log.read_text()  # noqa: E731
    wait_until(leads, WAIT_S, "the Lease", operator.process)
    case, led = "restart", time.monotonic()
    yield line(case, "until_the_lease_is_free", "s", led - began)
    await_looks(operator, 1)
    yield line(case, "from_then_to_first_resync", "s", time.monotonic() - led)
    yield line(case, "operator_cpu", "s", operator.cpu_s())
    yield line(case, "operator_peak", "MiB", operator.peak_mib())
    done = writes(site.cluster.audit, mark)
    del done["refused"]
    # What a fabric has once is applied again, by one that cannot know it; of nodes nothing is.
    yield line(case, "writes", "count", done.total(), not set(done) - APPLIED_AGAIN)
    yield from quiet(site, operator, "quiet after restart")
    operator.process.stop()
