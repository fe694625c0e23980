"""What offers slots and GPUs on a node, for test_slots: our programs, and a stand-in's.

The nodes of these tests have no NIC on a PCIe bus: epfabric-slots reads a recorded tree instead.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from epfabric_crds import names
from harness import helm, images
from harness.node.node import Node
from harness.process import Process
from unit.nic.recorded import Recorded

from .fabric import SPACE, Fabric, Json, eventually
from .gpu_driver import DRIVER

TESTS = Path(__file__).resolve().parents[1]
RESOURCES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCES}/namespaces/{SPACE}/resourceclaims"
CLASSES = f"{RESOURCES}/deviceclasses"
SLICES = f"{RESOURCES}/resourceslices"
TEMPLATES = f"{RESOURCES}/namespaces/{SPACE}/resourceclaimtemplates"
DAEMONSETS = f"/apis/apps/v1/namespaces/{names.NODES_NAMESPACE}/daemonsets"
ROOT = "resource.kubernetes.io/pcieRoot"
GPUS = {"gpu-0": "pci0000:7f", "gpu-1": "pci0000:37"}  # no rail is below the first one's root
RAILS = {"1", "2"}  # below pci0000:37
STATE = "var-lib/epfabric/slots/claims"
PLUGIN = "epfabric-slots-plugin"
SLOT = "epfabric.io/slot"


class Gpus:
    """The stand-in's program on one node; it ends with the node's power."""

    def __init__(self, fabric: Fabric, node: Node) -> None:
        self.node = node
        self._fabric = fabric
        self._calls = fabric.site.processes.folder / f"gpu-calls-{node.name}"
        self._process: Process | None = None

    def start(self) -> None:
        roots = [f"--root={root}" for root in GPUS.values()]
        command = [
            *(sys.executable, "-m", "node.gpu_driver", f"--calls={self._calls}", *roots),
            f"--node={self.node.name}",
            f"--kubeconfig={self._fabric.site.cluster.kubeconfig}",
        ]
        self._process = self.node.begin("gpus", command, {"PYTHONPATH": str(TESTS)})

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def calls(self, uid: str) -> list[str]:
        """What the kubelet asked for this claim, in order."""
        said = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [line.split()[0] for line in said if line.endswith(uid)]


@contextmanager
def gpus_and_slots(fabric: Fabric, node: Node) -> Iterator[Gpus]:
    """Slots of recorded rails on every node, and GPUs on one."""
    path = f"{DAEMONSETS}/epfabric-slots"
    before = fabric.api.get(path)["spec"]
    tree = fabric.site.processes.folder / "recorded"
    Recorded("mlx5", tree)
    gpus = Gpus(fabric, node)
    try:
        fabric.api.patch(path, {"spec": {"template": {"spec": reading(before, tree)}}})
        fabric.api.post(CLASSES, device_class())
        gpus.start()
        eventually(lambda: all(roots_of(fabric, one) for one in fabric.nodes), "recorded rails")
        yield gpus
    finally:
        fabric.clear()  # without its driver no claim could be given back
        gpus.stop()
        fabric.api.delete(f"{CLASSES}/{DRIVER}", {})
        back = [{"op": "replace", "path": "/spec/template", "value": before["template"]}]
        fabric.api.patch(path, back, "application/json-patch+json")  # type: ignore[arg-type]


def reading(spec: Json, tree: Path) -> Json:
    """A patch: the program's container reads `tree`, whose links are absolute, as the node's."""
    (container,) = spec["template"]["spec"]["containers"]
    mount = {"name": "recorded", "mountPath": str(tree), "readOnly": True}
    arguments = [*container["args"], f"--host-root={tree}"]
    changed = {"name": container["name"], "args": arguments, "volumeMounts": [mount]}
    volume = {"name": "recorded", "hostPath": {"path": str(tree), "type": "Directory"}}
    return {"containers": [changed], "volumes": [volume]}


def device_class() -> Json:
    """Of the stand-in's GPUs."""
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {"selectors": [selector]},
    }


def template(name: str) -> Json:
    """A claim of a GPU and a slot below one PCIe root, as docs/scheduling.md shows it."""
    classes = {"gpu": DRIVER, "slot": names.DRA_DRIVER}
    wanted = {
        "requests": [
            {"name": request, "exactly": {"deviceClassName": name}}
            for request, name in classes.items()
        ],
        "constraints": [{"requests": [*classes], "matchAttribute": ROOT}],
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {"spec": {"devices": wanted}},
    }


def roots_of(fabric: Fabric, node: Node) -> set[str]:
    """The PCIe roots of the node's slots."""
    found = fabric.api.get(f"{SLICES}/{node.name}.{names.DRA_DRIVER}")["spec"]["devices"]
    return {one["attributes"][ROOT]["string"] for one in found if ROOT in one["attributes"]}


def prepared(node: Node, uid: str) -> Json | None:
    """What our driver has written of the claim; None where it knows nothing of it."""
    path = node.disk / STATE / f"{uid}.json"
    return json.loads(path.read_text()) if path.exists() else None


def cdi_files(node: Node, uid: str) -> list[Path]:
    """Of both drivers. /var/run is a link to /run; from outside it would leave the node."""
    return sorted((node.root / "run/cdi").glob(f"*{uid}*.json"))


@contextmanager
def device_plugin(fabric: Fabric, node: Node) -> Iterator[None]:
    """The chart's device plugin on one node, under a name of its own, beside the DRA driver."""
    values: dict[str, Any] = {"global": {"registry": images.REGISTRY}}
    values |= {"slots": {"mode": "device-plugin"}, "injection": {"policyVersion": "v1"}}
    rendered = yaml.safe_load_all(helm.template(values, names.NAMESPACE))
    (made,) = [
        one
        for one in rendered
        if one and (one["kind"], one["metadata"]["name"]) == ("DaemonSet", "epfabric-slots")
    ]
    label = {"app.kubernetes.io/name": PLUGIN}
    made["metadata"]["name"] = PLUGIN
    made["spec"]["selector"]["matchLabels"] = label
    made["spec"]["template"]["metadata"]["labels"] |= label
    made["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
    fabric.api.post(DAEMONSETS, made)
    try:
        yield
    finally:
        fabric.api.delete(f"{DAEMONSETS}/{PLUGIN}", {})
