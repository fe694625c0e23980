"""What the driver refuses: paths that lead elsewhere, volumes written by hand, wrong kinds."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from epfabric_agent.proto import csi_pb2
from unit.csi.answers import Answers, running
from unit.csi.kubelet import Node, Pod, publish_request

POD = Pod()
VOLUME_IDS = ["", ".", "..", "../x", "a/b", "/etc", "a\nb", ".hidden", "-x", "é", "a" * 129]
TARGETS = [
    "",
    "/",
    "relative/pods/u/volumes/kubernetes.io~csi/epfabric/mount",
    "/etc",
    "{root}/pods",
    "{root}/pods/u/volumes/kubernetes.io~csi/epfabric/mount/deeper",
    "{root}/pods/../pods/u/volumes/kubernetes.io~csi/epfabric/mount",
    "{root}/pods/u/volumes/kubernetes.io~csi/../mount",
    "{root}/pods/u/volumes/kubernetes.io~secret/epfabric/mount",
    "{root}/pods/u/volumes/kubernetes.io~csi/epfabric/mount/",
    "{root}/pods//u/volumes/kubernetes.io~csi/epfabric/mount",
    "{root}-other/pods/u/volumes/kubernetes.io~csi/epfabric/mount",
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for all refusals: none of them may change anything on it."""
    folder = tmp_path_factory.mktemp("n")
    with running() as answers:
        node = Node(folder, answers.kubeconfig(folder))
        try:
            node.start_host()
            node.start_driver()
            yield node
        finally:
            node.close()


def everything(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*")}


@pytest.mark.parametrize("volume_id", VOLUME_IDS)
@pytest.mark.parametrize("call", ["publish", "unpublish"])
def test_a_volume_id_that_is_no_plain_name_is_refused(
    shared: Node, volume_id: str, call: str
) -> None:
    shared.target(POD).parent.mkdir(parents=True, exist_ok=True)
    before = everything(shared.folder)
    with pytest.raises(grpc.RpcError) as refused:
        getattr(shared, call)(POD, volume_id=volume_id)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "volume id" in refused.value.details()
    assert everything(shared.folder) == before


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("call", ["publish", "unpublish"])
def test_a_target_outside_the_volumes_of_pods_is_refused(
    shared: Node, target: str, call: str
) -> None:
    shared.target(POD).parent.mkdir(parents=True, exist_ok=True)
    before = everything(shared.folder)
    with pytest.raises(grpc.RpcError) as refused:
        getattr(shared, call)(POD, target_path=target.format(root=shared.kubelet_root))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "target path" in refused.value.details()
    assert everything(shared.folder) == before


@pytest.mark.parametrize("linked", ["parent", "mount"])
def test_a_target_through_a_symbolic_link_is_refused_and_not_followed(
    node: Node, linked: str
) -> None:
    outside = node.folder / "outside"
    (outside / "mount").mkdir(parents=True)
    where = node.target(POD) if linked == "mount" else node.target(POD).parent
    where.parent.mkdir(parents=True)
    where.symlink_to(outside)
    for call in (node.unpublish, node.publish):
        if call == node.publish:
            Path(node.state_dir / "volumes" / POD.volume_id).mkdir()
        with pytest.raises(grpc.RpcError) as refused:
            call(POD)
        code = refused.value.code()
        assert code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.UNAVAILABLE)
    assert os.listdir(outside) == ["mount"]


@pytest.mark.parametrize(
    ("pod", "says"),
    [
        (replace(POD, fabric=""), "names no fabric"),
        (replace(POD, fabric="Moe"), "names no fabric"),
        (replace(POD, fabric="../x"), "names no fabric"),
        (replace(POD, group="a.b"), "DNS label"),
        (replace(POD, group="a" * 64), "DNS label"),
        (replace(POD, owner="Job moe"), "apiVersion kind name uid"),
        (replace(POD, ephemeral="false"), "inline volumes"),
        (replace(POD, extra=(("csi.storage.k8s.io/pod.namespace", ""),)), "podInfoOnMount"),
    ],
)
def test_a_volume_that_admission_did_not_write_is_refused(
    shared: Node, pod: Pod, says: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        shared.publish(pod)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert says in refused.value.details()
    assert not shared.record(pod).exists()


def test_block_volumes_are_refused(shared: Node) -> None:
    asked = publish_request(shared, POD)
    asked.volume_capability.block.SetInParent()
    with shared.client() as stub, pytest.raises(grpc.RpcError) as refused:
        stub.NodePublishVolume(asked, timeout=30)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_the_node_offers_nothing_that_it_lacks(shared: Node) -> None:
    with shared.client() as stub:
        capabilities = stub.NodeGetCapabilities(csi_pb2.NodeGetCapabilitiesRequest(), timeout=30)
        info = stub.NodeGetInfo(csi_pb2.NodeGetInfoRequest(), timeout=30)
    assert list(capabilities.capabilities) == []
    assert info.node_id == "node-a"


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_pod_that_cannot_be_checked_gets_nothing_until_it_can(
    node: Node, answers: Answers, status: int
) -> None:
    answers.status = status
    with pytest.raises(grpc.RpcError) as refused:
        node.publish(POD)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "could not be asked" in refused.value.details()
    assert not node.record(POD).exists()
    answers.status = 200
    agent = threading.Thread(target=node.bind_agent, args=[POD])
    agent.start()
    node.publish(POD)
    agent.join(60)
    assert len(node.host_mounts(POD)) == 1


def test_a_pod_that_waits_when_its_fabric_goes_leaves_nothing(node: Node, answers: Answers) -> None:
    with pytest.raises(grpc.RpcError) as waits:
        node.publish(POD)
    assert waits.value.code() == grpc.StatusCode.UNAVAILABLE
    assert node.record(POD).exists()
    answers.gone.add(POD.fabric)
    with pytest.raises(grpc.RpcError) as refused:
        node.publish(POD)
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    # The refusal is final: a kubelet sends no unpublish after it.
    assert not node.record(POD).exists()
    assert not node.directory(POD).exists()


def test_a_refused_pod_does_not_undo_the_volume_of_another(node: Node, answers: Answers) -> None:
    agent = threading.Thread(target=node.bind_agent, args=[POD])
    agent.start()
    node.publish(POD)
    agent.join(60)
    other = replace(POD, name="moe-1", fabric="gone")
    answers.gone.add(other.fabric)
    with pytest.raises(grpc.RpcError) as refused:
        node.publish(other, volume_id=POD.volume_id)
    assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert node.record(POD).exists()
    assert len(node.host_mounts(POD)) == 1
