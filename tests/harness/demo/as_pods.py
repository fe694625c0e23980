"""The demo's site: a control plane, real nodes that have the images, and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness import images
from harness.demo import site
from harness.demo.show import Show
from harness.demo.site import LABEL, Pod, Site
from harness.node.site import Site as Nodes
from harness.process import Processes
from harness.prometheus import Prometheus

NODES = 2
VALUES = {"global": {"registry": images.REGISTRY}}


def started(processes: Processes, show: Show) -> Site:
    """Nodes that have the images, and nothing installed on them."""
    show.step(f"start a control plane, {NODES} nodes and Prometheus")
    nodes = Nodes(processes, NODES, labels={LABEL: "true"})
    nodes.start(list(images.archives().values()))
    prometheus = Prometheus(processes, address=nodes.wires.plan.host)
    prometheus.start()
    show.note(f"API server {nodes.cluster.url}, kubeconfig {nodes.cluster.kubeconfig}")
    show.note(f"Prometheus {prometheus.url}")
    show.note(f"a shell on {nodes.nodes[0].name}: {' '.join(nodes.nodes[0].enter())} bash")

    def pids(pod: Pod) -> list[int]:
        return nodes.node(pod["spec"]["nodeName"]).pids(pod["metadata"]["uid"])

    def logs(pod: Pod) -> str:
        metadata = pod["metadata"]
        return nodes.cluster.try_kubectl(
            "logs", "-n", metadata["namespace"], metadata["name"]
        ).stdout

    networks = [node.enter("net") for node in nodes.nodes]
    return Site(nodes.cluster, prometheus, show, pids, logs, networks)


@contextmanager
def furnished(nodes: Site) -> Iterator[Site]:
    nodes.show.step("install the chart")
    with site.furnished(nodes, VALUES):
        yield nodes
