"""The command gather: a tar.gz for whoever helps, without secrets; used by main.py.

No Secret is ever read. Of pods that use a fabric only name, place and state are kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import sys
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any

from epfabric_crds import names

from epfabric_operator import paths
from epfabric_operator.cli import output, redact
from epfabric_operator.cli.cluster import Cluster, fault_of
from epfabric_operator.cli.doctor import command as doctor
from epfabric_operator.cli.doctor.facts import label, read, uses_fabric
from epfabric_operator.cli.fault import FAILED, FINE, NO_CLUSTER, Fault
from epfabric_operator.kube import ApiError

SPACES = (names.NAMESPACE, names.NODES_NAMESPACE)
MOST_LOGS = 64
MOST_LOG_BYTES = 4 << 20
OBJECTS: Mapping[str, str] = {
    "fabrics": paths.FABRICS,
    "epnodes": paths.EPNODES,
    "groups": f"/apis/{names.API_VERSION}/{names.GROUPS}",
    "nodes": paths.NODES,
    "csinodes": "/apis/storage.k8s.io/v1/csinodes",
    "bindings": paths.bindings("v1"),
}
IN_SPACES: Mapping[str, str] = {
    "pods": "/api/v1/namespaces/{}/pods",
    "daemonsets": "/apis/apps/v1/namespaces/{}/daemonsets",
    "deployments": "/apis/apps/v1/namespaces/{}/deployments",
    "jobs": "/apis/batch/v1/namespaces/{}/jobs",
    "leases": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "events": "/apis/events.k8s.io/v1/namespaces/{}/events",
}
NODE_PARTS = ("allocatable", "capacity", "conditions", "nodeInfo", "addresses")
README = """\
Support bundle of EPFabric. Left out: Secrets, data of ConfigMaps, values of environment variables,
annotations that are not EPFabric's, certificates. Pods that use a fabric stand in user-pods.json
with name, place and state only. Logs are searched for what looks like a credential, which is no
proof: read them before you hand the bundle on. missing.txt lists what could not be read and why.
"""


class Bundle:
    """Files of an archive that is written at the end; `missing` is what could not be read."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.missing: list[str] = []

    def add(self, name: str, value: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True)
        self.files[name] = text.encode()

    def write(self, file: str) -> None:
        """Raises Fault."""
        missing = "\n".join(self.missing) or "nothing"
        files = {**self.files, "README.txt": README.encode(), "missing.txt": missing.encode()}
        try:
            with tarfile.open(file, "w:gz") as archive:
                for name, data in sorted(files.items()):
                    entry = tarfile.TarInfo(f"epfabric/{name}")
                    entry.size, entry.mode = len(data), 0o600
                    archive.addfile(entry, io.BytesIO(data))
        except OSError as error:
            raise Fault(
                FAILED, f"{file} cannot be written: {error}; give another --file"
            ) from error


def run(cluster: Cluster, options: argparse.Namespace) -> int:
    file = options.file or f"epfabric-{output.now():%Y%m%d-%H%M%S}.tar.gz"
    bundle = Bundle()
    facts = read(cluster)
    found = doctor.examine(facts)
    bundle.add("doctor.txt", redact.text(doctor.text(facts, found)))
    bundle.add("doctor.json", redact.clean([dataclasses.asdict(one) for one in found]))
    bundle.add("user-pods.json", [brief(pod) for pod in facts.user_pods or ()])
    for name, items in _objects(cluster, bundle):
        bundle.add(f"{name}.json", items)
    for pod in (facts.own_pods or ())[:MOST_LOGS]:
        if options.log_lines:
            _logs(cluster, bundle, pod, options.log_lines)
    bundle.write(file)
    print(file)
    for one in bundle.missing:
        print(f"left out: {one}", file=sys.stderr)
    return FINE


def _objects(cluster: Cluster, bundle: Bundle) -> Iterator[tuple[str, list[Any]]]:
    wanted = dict(OBJECTS)
    for space in SPACES:
        wanted |= {f"{space}/{name}": path.format(space) for name, path in IN_SPACES.items()}
    for name, path in wanted.items():
        try:
            items = cluster.list(path)
        except Fault as fault:
            if fault.code == NO_CLUSTER:
                raise
            bundle.missing.append(f"{name}: {fault}")
            continue
        kept = [node(one) if name == "nodes" else one for one in items]
        # In our namespaces others may run pods too; events of ours name only ours.
        kept = [brief(one) if name.endswith("/pods") and uses_fabric(one) else one for one in kept]
        yield name, [redact.clean(one) for one in kept]


def _logs(cluster: Cluster, bundle: Bundle, pod: Mapping[str, Any], lines: int) -> None:
    metadata = pod["metadata"]
    base = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/log"
    for container in pod["spec"].get("containers", ()):
        for suffix, previous in (("", "false"), (".previous", "true")):
            if previous == "true" and not _restarted(pod, container["name"]):
                continue
            where = f"logs/{label(pod)}/{container['name']}{suffix}.log"
            query = {
                "container": container["name"],
                "tailLines": str(lines),
                "limitBytes": str(MOST_LOG_BYTES),
                "previous": previous,
                "timestamps": "true",
            }
            try:
                bundle.add(where, redact.text(cluster.kube.text(base, query)))
            except ApiError as error:
                bundle.missing.append(f"{where}: {fault_of(error)}")


def _restarted(pod: Mapping[str, Any], container: str) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return any(one["name"] == container and one.get("restartCount") for one in statuses)


def brief(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Of somebody else's pod: what it is called, where it is, how it is."""
    metadata, status = pod["metadata"], pod.get("status", {})
    ours = {k: v for k, v in metadata.get("annotations", {}).items() if k.startswith(redact.OURS)}
    return {
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata.get("namespace"),
            "annotations": ours,
            "creationTimestamp": metadata.get("creationTimestamp"),
            "deletionTimestamp": metadata.get("deletionTimestamp"),
        },
        "node": pod["spec"].get("nodeName"),
        "phase": status.get("phase"),
        "conditions": [
            {"type": one["type"], "status": one["status"], "reason": one.get("reason")}
            for one in status.get("conditions", ())
        ],
    }


def node(one: Mapping[str, Any]) -> dict[str, Any]:
    """Without the list of images, which is long, and without annotations."""
    metadata, status = one["metadata"], one.get("status", {})
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels", {})},
        "spec": {key: one["spec"].get(key) for key in ("taints", "unschedulable")},
        "status": {key: status.get(key) for key in NODE_PARTS},
    }
