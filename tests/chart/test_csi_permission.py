"""The CSI driver, with its own account, asks a real API server whether a namespace may opt in."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import yaml
from chart.conftest import FABRIC, OTHER, PLAIN, TEAM
from chart.objects import NODES, As
from unit.csi.kubelet import Node, Pod


@pytest.fixture(scope="module")
def node(installed: As) -> Iterator[Node]:
    """A node whose driver has the rights of the chart's account and no other."""
    token = installed.run("create", "token", "epfabric-csi", "-n", NODES).strip()
    with tempfile.TemporaryDirectory(prefix="csi-") as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        config = yaml.safe_load(installed.cluster.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        kubeconfig.write_text(yaml.safe_dump(config))
        made = Node(Path(folder), kubeconfig)
        try:
            made.start_host()
            made.start_driver()
            yield made
        finally:
            made.close()


def test_a_namespace_that_the_fabric_selects_is_served(node: Node) -> None:
    pod = Pod(name="allowed", namespace=TEAM, fabric=FABRIC)
    agent = threading.Thread(target=node.bind_agent, args=[pod])
    agent.start()
    node.publish(pod)
    agent.join(60)
    assert len(node.host_mounts(pod)) == 1
    node.unpublish(pod)


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (Pod(namespace=OTHER, fabric=FABRIC), "may not use"),
        (Pod(namespace="kube-system", fabric=FABRIC), "may not use"),
        (Pod(namespace="chart-nowhere", fabric=FABRIC), "no namespace"),
        (Pod(namespace=PLAIN, fabric="chart-meo"), "no EPFabric 'chart-meo'"),
    ],
)
def test_a_hand_made_volume_of_any_other_namespace_is_refused(
    node: Node, pod: Pod, says: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        node.publish(pod)
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert says in refused.value.details()
    assert not node.record(pod).exists()
    assert not node.directory(pod).exists()
    node.unpublish(pod)
