"""NIC configuration with a real API server: status, condition, Events, other operators, leaving.

The agent runs in the machine's own network: the links that it sets are a veth pair of the test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract.conftest import rendered
from contract.stand import NODES_NAMESPACE, Stand
from epfabric_agent.csi.records import boot_id
from epfabric_agent.nic.journal import Journal
from epfabric_crds import names
from harness.process import Process

AGENT = Path(sys.executable).with_name("epfabric-agent")
RIGHTS = {"ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"}
NIC_DEVICES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nicdevices.configuration.net.nvidia.com"},
    "spec": {
        "group": "configuration.net.nvidia.com",
        "scope": "Namespaced",
        "names": {"kind": "NicDevice", "plural": "nicdevices", "singular": "nicdevice"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@dataclass
class Node:
    stand: Stand
    fabric: str
    name: str
    link: str
    state: Path
    agent: Process

    def wish(self, **nics: Any) -> None:
        spec = {"selector": {"names": [self.link]}, **nics}
        self.stand.apply(self.stand.fabric(self.fabric, nics=spec))

    @property
    def mtu(self) -> int:
        return int(Path(f"/sys/class/net/{self.link}/mtu").read_text())

    def condition(self) -> tuple[str, str]:
        found = self.stand.condition("epfn", self.name, "NICsConfigured")
        return found.get("status", ""), found.get("reason", "")

    def until(self, condition: tuple[str, str], mtu: int) -> None:
        self.stand.eventually(
            lambda: (self.condition(), self.mtu) == (condition, mtu), f"{condition}", self.agent
        )

    def events(self) -> set[str]:
        found = self.stand.api.get(
            "/apis/events.k8s.io/v1/namespaces/default/events",
            fieldSelector=f"regarding.name={self.name}",
        )
        return {item["reason"] for item in found["items"]}


@pytest.fixture
def node(stand: Stand, operator: Process, tmp_path: Path) -> Iterator[Node]:
    fabric = f"{stand.prefix}-nics"
    link = f"epf{uuid.uuid4().hex[:8]}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", "link", *words], check=True)

    ip("add", link, "type", "veth", "peer", "name", f"{link}p")
    ip("set", link, "up")
    ip("set", f"{link}p", "up")
    stand.node(fabric, fabric)
    rights = rendered(RIGHTS, names.AGENT_ACCOUNT)
    for document in rights:
        document["metadata"]["name"] = fabric
        if "roleRef" in document:
            document["roleRef"]["name"] = fabric
    stand.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    stand.apply(stand.fabric(fabric))
    agent = stand.cluster.processes.start(
        f"{fabric}-agent",
        [
            *(AGENT, f"--node={fabric}", f"--fabric={fabric}", "--port=0"),
            *(f"--address={stand.addresses[fabric]}", f"--state-dir={tmp_path}"),
            f"--kubeconfig={stand.token_kubeconfig(tmp_path, fabric)}",
            f"--namespace={NODES_NAMESPACE}",
        ],
        env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")},
    )
    try:
        yield Node(stand, fabric, fabric, link, tmp_path, agent)
    finally:
        agent.stop()
        stand.delete("epfabric", fabric)
        ip("del", link)


def test_a_fabric_sets_nics_and_says_so(node: Node) -> None:
    stand = node.stand
    node.wish(mtu=4200)
    node.until(("False", "Differs"), 1500)
    node.wish(mode="Configure", mtu=4200)
    node.until(("True", "AsWanted"), 4200)
    (nic,) = stand.find("epfn", node.name)["status"]["nics"]
    mtu = {"name": "mtu", "state": "AsWanted", "wanted": "4200", "actual": "4200"}
    assert nic == {"name": node.link, "state": "AsWanted", "settings": [mtu]}
    node.wish(mode="Configure", mtu=4200, pfc="0,0,0,1,0,0,0,0")
    node.until(("False", "Unsupported"), 4200)
    stand.eventually(
        lambda: stand.condition("epf", node.fabric, "NICsConfigured").get("status") == "False",
        "the fabric to tell it",
    )
    stand.eventually(lambda: "NICConfigured" in node.events(), "an Event", node.agent)
    node.wish(mode="Observe", mtu=4200)  # what was changed is given back
    node.until(("False", "Differs"), 1500)
    stand.eventually(lambda: "NICRestored" in node.events(), "an Event", node.agent)


def test_a_fabric_that_is_deleted_leaves_the_nics_as_they_were(node: Node) -> None:
    node.wish(mode="Configure", mtu=3000)
    node.until(("True", "AsWanted"), 3000)
    node.stand.cluster.kubectl("delete", "epfabric", node.fabric, "--wait=false")
    # What the DaemonSet's controller and a kubelet do with the pod meanwhile.
    assert node.agent.stop(grace_s=30.0) == 0
    assert node.mtu == 1500
    assert not Journal(node.state, boot_id()).memory.originals


def test_nics_of_another_operator_are_only_read(node: Node) -> None:
    stand = node.stand
    stand.apply(NIC_DEVICES)
    crd = "crd/nicdevices.configuration.net.nvidia.com"
    stand.cluster.kubectl("wait", "--for=condition=Established", crd, "--timeout=60s")
    try:
        for owner in ("somewhere-else", node.name):
            device = {
                "apiVersion": "configuration.net.nvidia.com/v1alpha1",
                "kind": "NicDevice",
                "metadata": {"name": f"{owner}-a2dc-mt1", "namespace": "default"},
                "status": {"node": owner},
            }
            stand.objects.create(device)
        node.wish(mode="Configure", mtu=3000)
        node.until(("False", "Differs"), 1500)
        found = stand.condition("epfn", node.name, "NICsConfigured")
        assert f"NicDevice {node.name}-a2dc-mt1" in found["message"]
    finally:
        stand.cluster.kubectl("delete", crd)
