"""Proxy slots on a real API server and scheduler: published, shared, matched with a GPU's root.

The node's NICs are a recorded tree, its GPUs the slice of a stand-in driver; both drivers' devices
go through the real allocator. The kubelet's calls are made by the test.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from contract.stand import NODES_NAMESPACE, Stand
from epfabric_agent.proto import dra_pb2, dra_pb2_grpc
from epfabric_crds import names
from harness import helm
from harness.kubelet.api import ApiError
from harness.process import Process, wait_until
from unit.nic.recorded import Recorded

SLOTS = (sys.executable, "-m", "epfabric_agent.slots.main")
ACCOUNT = "epfabric-slots"
WAIT_S = 90.0
CALL_S = 20.0
RESOURCE = "/apis/resource.k8s.io/v1"
ROOTS = ("pci0000:15", "pci0000:37", "pci0000:37")  # of the stand-in's GPUs
RAIL_NIC = "enp60s0np0"  # below pci0000:37


@dataclass(frozen=True)
class Node:
    stand: Stand
    name: str
    folder: Path
    driver: Process

    def slice(self) -> dict[str, Any] | None:
        path = f"{RESOURCE}/resourceslices/{self.name}.{names.DRA_DRIVER}"
        try:
            found: dict[str, Any] = self.stand.api.get(path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        return found

    def claim(self, name: str) -> dict[str, Any]:
        """A GPU and a slot below one root, and a pod that waits for them."""
        slot = {"deviceClassName": self.name}
        gpu = {"deviceClassName": f"{self.name}-gpu"}
        devices = {
            "requests": [{"name": "gpu", "exactly": gpu}, {"name": "slot", "exactly": slot}],
            "constraints": [
                {
                    "requests": ["gpu", "slot"],
                    "matchAttribute": "resource.kubernetes.io/pcieRoot",
                }
            ],
        }
        claim = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": devices},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self.name},
                "resourceClaims": [{"name": "both", "resourceClaimName": name}],
                "containers": [
                    {"name": "c", "image": "none", "resources": {"claims": [{"name": "both"}]}}
                ],
            },
        }
        self.stand.apply(claim)
        self.stand.apply(pod)
        return claim

    def allocated(self, name: str) -> dict[str, dict[str, Any]]:
        """What each request got; empty while nothing is allocated."""
        found = self.stand.api.get(f"{RESOURCE}/namespaces/default/resourceclaims/{name}")
        results = (
            found.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        )
        return {result["request"]: result for result in results}

    def uid(self, name: str) -> str:
        found = self.stand.api.get(f"{RESOURCE}/namespaces/default/resourceclaims/{name}")
        return str(found["metadata"]["uid"])

    def eventually(self, check: Any, what: str) -> None:
        wait_until(check, WAIT_S, what, self.driver)


def rights(node: str) -> list[dict[str, Any]]:
    """The chart's objects for the driver, under names that no installed chart has."""
    values = {"injection": {"policyVersion": "v1"}, "slots": {"mode": "dra"}}
    text = helm.template(values, names.NAMESPACE)
    text = text.replace(names.NODES_NAMESPACE, NODES_NAMESPACE)
    kinds = {"ClusterRole", "ClusterRoleBinding", "DeviceClass"}
    kinds |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    found = [
        document
        for document in yaml.safe_load_all(text)
        if document
        and document["kind"] in kinds
        and document["metadata"]["name"] in (ACCOUNT, names.DRA_DRIVER)
    ]
    assert {document["kind"] for document in found} == kinds
    for document in found:
        document["metadata"]["name"] = node
        if "roleRef" in document:
            document["roleRef"]["name"] = node
        if "policyName" in document.get("spec", {}):
            document["spec"]["policyName"] = node
    return found


def gpus(node: str) -> list[dict[str, Any]]:
    driver = "gpu.example.com"
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {"resource.kubernetes.io/pcieRoot": {"string": root}},
        }
        for index, root in enumerate(ROOTS)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    cel = {"cel": {"expression": f"device.driver == '{driver}'"}}
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{node}-gpu"},
            "spec": spec,
        },
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": f"{node}-gpu"},
            "spec": {"selectors": [cel]},
        },
    ]


@pytest.fixture(scope="module")
def node(
    stand: Stand, operator: Process, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    name = f"{stand.prefix}-slots"
    folder = tmp_path_factory.mktemp("slots")
    Recorded("mlx5", folder / "root")
    stand.node(name, name)
    stand.cluster.kubectl("create", "serviceaccount", ACCOUNT, "-n", NODES_NAMESPACE)
    objects = [*rights(name), *gpus(name)]
    stand.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    # One rail; a proxy for each session, so that a machine of two CPUs has two slots.
    selector = {"names": [RAIL_NIC]}
    stand.apply(stand.fabric(name, nics={"selector": selector}, proxies={"perGPU": 1}))
    driver = stand.cluster.processes.start(
        f"{name}-driver",
        [
            *(*SLOTS, "--mode=dra", f"--node={name}", f"--kubelet-root={folder / 'kubelet'}"),
            *(f"--state-dir={folder / 'state'}", f"--cdi-dir={folder / 'cdi'}"),
            f"--host-root={folder / 'root'}",
            f"--kubeconfig={stand.token_kubeconfig(folder, name, ACCOUNT)}",
        ],
    )
    try:
        yield Node(stand, name, folder, driver)
    finally:
        driver.stop()
        kubectl = stand.cluster.kubectl
        # No kubelet ends these pods.
        made, options = ("first", "second", "third"), ("-n", "default", "--ignore-not-found")
        kubectl("delete", "pod", *made, *options, "--force", "--grace-period=0")
        kubectl("delete", "resourceclaim", *made, *options, "--wait=false")
        kubectl("delete", "epfabric", name, "--ignore-not-found")
        kubectl("delete", "-f", "-", "--ignore-not-found", stdin=yaml.safe_dump_all(objects))
        kubectl("delete", "resourceslice", f"{name}.{names.DRA_DRIVER}", "--ignore-not-found")
        kubectl("delete", "serviceaccount", ACCOUNT, "-n", NODES_NAMESPACE)


def test_a_rail_is_published_as_a_device_that_claims_share(node: Node) -> None:
    node.eventually(lambda: node.slice() is not None, "the slice")
    found = node.slice()
    assert found is not None
    (rail,) = found["spec"]["devices"]
    assert rail["allowMultipleAllocations"] is True
    assert int(rail["capacity"]["slots"]["value"]) >= 1
    attributes = {k: next(iter(v.values())) for k, v in rail["attributes"].items()}
    assert attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:37"
    assert attributes["resource.kubernetes.io/pciBusID"] == "0000:3c:00.0"
    assert (attributes["nic"], attributes["fabric"]) == (RAIL_NIC, node.name)


def test_a_slice_that_a_kubelet_wiped_comes_again(node: Node) -> None:
    node.eventually(lambda: node.slice() is not None, "the slice")
    before = node.slice()
    assert before is not None
    node.stand.cluster.kubectl("delete", "resourceslice", before["metadata"]["name"])
    node.eventually(lambda: node.slice() is not None, "the slice again")
    again = node.slice()
    assert again is not None
    assert again["metadata"]["uid"] != before["metadata"]["uid"]
    assert again["spec"]["devices"] == before["spec"]["devices"]


def test_a_gpu_and_a_slot_are_of_one_root_and_the_rail_is_shared(node: Node) -> None:
    node.claim("first")
    node.claim("second")
    for name in ("first", "second"):
        node.eventually(lambda n=name: len(node.allocated(n)) == 2, f"the claim {name}")
    got = [node.allocated(name) for name in ("first", "second")]
    assert {found["gpu"]["device"] for found in got} == {"gpu-1", "gpu-2"}
    assert {found["slot"]["device"] for found in got} == {"rail-1"}
    assert all(found["slot"]["driver"] == names.DRA_DRIVER for found in got)
    assert len({found["slot"]["shareID"] for found in got}) == 2
    assert {found["slot"]["consumedCapacity"]["slots"] for found in got} == {"1"}
    # The third GPU has no slot below its root.
    node.claim("third")
    node.eventually(lambda: unschedulable(node, "third"), "the third to be told why")
    assert not node.allocated("third")


def unschedulable(node: Node, pod: str) -> bool:
    found = node.stand.api.get(f"/api/v1/namespaces/default/pods/{pod}")
    return any(
        condition["type"] == "PodScheduled" and condition["status"] == "False"
        for condition in found.get("status", {}).get("conditions", [])
    )


def test_a_kubelet_prepares_and_gives_back_any_number_of_times(node: Node) -> None:
    node.eventually(lambda: len(node.allocated("first")) == 2, "the claim")
    uid = node.uid("first")
    asked = [dra_pb2.Claim(namespace="default", name="first", uid=uid)]
    socket = node.folder / "kubelet/plugins" / names.DRA_DRIVER / "dra.sock"
    cdi = node.folder / "cdi" / f"epfabric.io-{uid}.json"
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = dra_pb2_grpc.DRAPluginStub(channel)
        for _ in range(2):
            answer = stub.NodePrepareResources(
                dra_pb2.NodePrepareResourcesRequest(claims=asked), timeout=CALL_S
            ).claims[uid]
            assert answer.error == ""
            (device,) = answer.devices
            assert (device.pool_name, device.device_name) == (node.name, "rail-1")
            assert device.share_id == node.allocated("first")["slot"]["shareID"]
            edits = json.loads(cdi.read_text())["devices"][0]["containerEdits"]
            assert edits == {"env": ["EPFABRIC_RAILS=1"]}
            cdi.unlink()  # gone with /var/run at a reboot
        unknown = dra_pb2.Claim(namespace="default", name="gone", uid="0000")
        for _ in range(2):
            gone = stub.NodeUnprepareResources(
                dra_pb2.NodeUnprepareResourcesRequest(claims=[*asked, unknown]), timeout=CALL_S
            ).claims
            assert {answer.error for answer in gone.values()} == {""}
        assert not cdi.exists()


def test_without_a_fabric_there_is_no_slice(node: Node) -> None:
    node.stand.delete("epfabric", node.name)
    node.eventually(lambda: node.slice() is None, "the slice to go")
