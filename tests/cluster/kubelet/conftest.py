"""One kubelet of four nodes for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.cluster import Cluster
from harness.kubelet.api import Api
from harness.kubelet.kubelet import Kubelet
from harness.nodes import Nodes
from harness.process import wait_until

from .bench import LABEL, SPACE, WAIT_S, Running, exists


@pytest.fixture(scope="package")
def running(cluster: Cluster) -> Iterator[Running]:
    api = Api(cluster.kubeconfig)
    nodes = Nodes(cluster.kubeconfig, 4, labels={LABEL: "true"}, prefix="kubelet-test")
    kubelet = Kubelet(
        cluster.kubeconfig,
        cluster.folder / "kubelet-test",
        nodes.addresses,
        images={"speaker": ["sh", "-c", 'echo "image says $0"']},
    )
    api.post(
        "/api/v1/namespaces",
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}},
    )
    account = f"/api/v1/namespaces/{SPACE}/serviceaccounts/default"
    nodes.start()
    kubelet.start()
    try:
        wait_until(lambda: exists(api, account), WAIT_S, "the default account")
        yield Running(api, kubelet, nodes)
    finally:
        kubelet.stop()
        nodes.stop()
        nodes.delete()
        api.delete(f"/api/v1/namespaces/{SPACE}", {})
