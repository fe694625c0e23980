"""The demo's site without real nodes, for fast tests: each pod's program is a process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.cluster import Cluster
from harness.controlplane import free_ports
from harness.demo import site
from harness.demo.show import Show
from harness.demo.site import LABEL, Site
from harness.kubelet.kubelet import Kubelet
from harness.nodes import Nodes
from harness.prometheus import Prometheus

NODES = 4
IMAGES = {name: [name] for name in ("epfabric-operator", "epfabric-agent")}


@contextmanager
def furnished(cluster: Cluster, prometheus: Prometheus, show: Show) -> Iterator[Site]:
    """A site with the chart installed and no fabric; at the end chart and nodes are gone."""
    with run_nodes(cluster) as kubelet:
        made = Site(
            cluster,
            prometheus,
            show,
            pids=lambda pod: kubelet.pids(pod["metadata"]["namespace"], pod["metadata"]["name"]),
            logs=lambda pod: kubelet.logs(
                pod["metadata"]["namespace"],
                pod["metadata"]["name"],
                pod["spec"]["containers"][0]["name"],
            ),
        )
        # Pods share this machine's network: take ports that nobody has.
        health, metrics = free_ports(2)
        operator = {"healthPort": health, "metricsPort": metrics}
        ports = {"operator": operator, "agent": {"port": 0}}
        with site.furnished(made, ports):
            yield made


@contextmanager
def run_nodes(cluster: Cluster) -> Iterator[Kubelet]:
    """Nodes that are kept ready, and what runs their pods."""
    nodes = Nodes(cluster.kubeconfig, NODES, labels={LABEL: "true"})
    # A cluster may have had nodes of these names before: what is left of them is not these.
    folder = Path(tempfile.mkdtemp(prefix="nodes-", dir=cluster.folder))
    kubelet = Kubelet(cluster.kubeconfig, folder, nodes.addresses, IMAGES)
    nodes.start()
    try:
        kubelet.start()
        try:
            yield kubelet
        finally:
            kubelet.stop()
    finally:
        nodes.stop()
    nodes.delete()
