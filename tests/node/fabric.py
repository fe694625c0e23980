"""A fabric on real nodes, as the tests of this folder drive it: pods, what they say and leave."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epfabric_crds import names
from harness import csi_client, helm, images
from harness.demo.site import make_namespace
from harness.kubelet.api import Api, ApiError
from harness.node.node import Node
from harness.node.site import Site

NAME = SPACE = "live"
LABEL = "epfabric.io/node-test"
BOUND_S = 90.0
MOST_SESSIONS = 2  # of all pods of a node at once, by the fabric's one tenant
PODS = f"/api/v1/namespaces/{SPACE}/pods"
GROUPS = f"/apis/{names.API_VERSION}/namespaces/{SPACE}/epgroups"
FABRICS = f"/apis/{names.API_VERSION}/epfabrics"
RANK = Path(__file__).with_name("rank.py").read_text()
# /var/run is a link to /run in the images; followed from outside it would leave the pod.
MOUNTED = "run/epfabric"

Json = dict[str, Any]


def eventually(check: Callable[[], object], what: str, bound_s: float = BOUND_S) -> None:
    """Asks until the answer is true; what is not there yet is no answer."""
    end = time.monotonic() + bound_s
    while True:
        try:
            if check():
                return
        except (ApiError, OSError) as error:
            last: object = error
        else:
            last = ""
        assert time.monotonic() < end, f"not within {bound_s:.0f} s: {what} {last}"
        time.sleep(0.1)


@contextmanager
def gone_is_fine() -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.code != 404:
            raise


@dataclass(frozen=True)
class Inode:
    """What makes a directory the same one."""

    device: int
    number: int


class Fabric:
    """The chart and one EPFabric, installed on `site`."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.api = Api(site.cluster.kubeconfig)
        self.nodes = site.nodes

    def install(self) -> None:
        cluster = self.site.cluster
        make_namespace(cluster)
        values = {"global": {"registry": images.REGISTRY}, "slots": {"mode": "dra"}}
        helm.install(cluster.kubeconfig, "epfabric", names.NAMESPACE, values)
        cluster.kubectl(
            *("rollout", "status", "daemonset/epfabric-csi", "-n", names.NODES_NAMESPACE),
            "--timeout=90s",
        )
        self.make_space(SPACE, enforce="restricted")
        self.apply()

    def make_space(self, name: str, enforce: str) -> None:
        """A namespace whose pods may opt in; returns when pods can be made in it."""
        labels = {LABEL: "true", "pod-security.kubernetes.io/enforce": enforce}
        metadata = {"name": name, "labels": labels}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        self.api.post("/api/v1/namespaces", body)
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        eventually(lambda: self.exists(account), f"the default account of {name}")

    def apply(self) -> None:
        """Ready when this returns."""
        spec = {
            "nodeSelector": {LABEL: "true"},
            "namespaceSelector": {"matchLabels": {LABEL: "true"}},
            "transport": {"allowTcp": True},
            "proxies": {"perGPU": 1, "idle": "adaptive"},
            "tenants": [{"name": "all", "namespaceSelector": {}, "maxSessions": MOST_SESSIONS}],
        }
        body = {"apiVersion": names.API_VERSION, "kind": "EPFabric", "metadata": {"name": NAME}}
        self.api.post(FABRICS, {**body, "spec": spec})
        eventually(self.is_ready, "the fabric is Ready")

    def is_ready(self) -> bool:
        conditions = self.api.get(f"{FABRICS}/{NAME}").get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def delete(self) -> None:
        self.api.delete(f"{FABRICS}/{NAME}", {})

    def await_gone(self) -> None:
        """Neither the fabric nor an agent of it is left."""
        eventually(lambda: not self.exists(f"{FABRICS}/{NAME}"), "the fabric is gone")
        eventually(lambda: not self.agents(), "the agents are gone")

    def exists(self, path: str) -> bool:
        with gone_is_fine():
            self.api.get(path)
            return True
        return False

    def agents(self) -> list[Json]:
        return self.ours(f"{names.FABRIC_LABEL}={NAME}")

    def ours(self, selector: str, node: str = "") -> list[Json]:
        """Pods of the chart and of fabrics on the nodes."""
        path = f"/api/v1/namespaces/{names.NODES_NAMESPACE}/pods"
        found: list[Json] = self.api.get(path, labelSelector=selector)["items"]
        return [pod for pod in found if node in ("", pod["spec"].get("nodeName"))]

    # --- pods

    def create(self, name: str, node: Node | None = None, **more: Any) -> Json:
        """A pod of a rank; `more` goes into its spec, `container` into its container."""
        body = pod(name, node.name if node else None, **more)
        return self.api.post(f"/api/v1/namespaces/{body['metadata']['namespace']}/pods", body)

    def pair(self, group: str) -> tuple[Json, Json]:
        """Two ranks that exchange blocks, one on each node."""
        made = [
            self.create(f"{group}-{rank}", node, group=group, rank=rank, world=2)
            for rank, node in enumerate(self.nodes)
        ]
        for one in made:
            self.await_rounds(one)
        return made[0], made[1]

    def read(self, one: Json) -> Json:
        space, name = one["metadata"]["namespace"], one["metadata"]["name"]
        return self.api.get(f"/api/v1/namespaces/{space}/pods/{name}")

    def running(self, one: Json) -> bool:
        """Its container runs, for a second at least."""
        return "running" in self.status_of(one).get("state", {})

    def status_of(self, one: Json) -> Json:
        """Of the pod's container; empty before there is one."""
        statuses: list[Json] = self.read(one)["status"].get("containerStatuses", [])
        return statuses[0] if statuses else {}

    def node_of(self, one: Json) -> Node:
        return self.site.node(self.read(one)["spec"]["nodeName"])

    def events(self, one: Json) -> list[Json]:
        """All that the pod's rank has said, over its restarts, from the node's own files."""
        metadata = one["metadata"]
        folder = f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        found = []
        for node in self.nodes:
            logs = (node.disk / "var-log/pods" / folder / "rank").glob("*.log")
            for log in sorted(logs, key=lambda path: int(path.stem)):
                lines = [line.split(" ", 3)[-1] for line in log.read_text().splitlines()]
                found += [json.loads(line) for line in lines if line.startswith("{")]
        return found

    def await_rounds(self, one: Json, more: int = 2) -> None:
        """The rank does this many more rounds; no block was wrong."""
        seen = len(self.events(one))

        def done() -> bool:
            return len([e for e in self.events(one)[seen:] if e["event"] == "round"]) >= more

        eventually(done, f"{one['metadata']['name']} does {more} more rounds")
        assert not [e for e in self.events(one) if e["event"] == "wrong"]

    def joined(self, one: Json) -> int:
        """How often the rank has joined a group."""
        return len([e for e in self.events(one) if e["event"] == "joined"])

    def volume_in(self, one: Json) -> Path:
        """The pod's volume as its process sees it."""
        pids = self.node_of(one).pids(one["metadata"]["uid"])
        return Path(f"/proc/{pids[0]}/root", MOUNTED)

    def inode_in(self, one: Json) -> Inode:
        found = self.volume_in(one).stat()
        return Inode(found.st_dev, found.st_ino)

    def await_nothing_of(self, one: Json, node: Node, pids: list[int]) -> None:
        """The node has neither these processes of it nor its volume; its object may stay."""
        uid = one["metadata"]["uid"]
        marks = (uid, csi_client.volume_id(uid, names.POD_VOLUME))
        eventually(lambda: not any(map(node.is_running, pids)), "its processes are gone")
        eventually(
            lambda: not [v for v in volumes_on(node) if any(mark in v for mark in marks)],
            "its volume is gone",
        )

    def remove(self, one: Json, grace_s: int | None = None) -> None:
        name = one["metadata"]["name"]
        options: Json = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        self.api.delete(f"{PODS}/{name}", options)

    def clear(self) -> list[str]:
        """Deletes all pods; returns what is still left after a bounded wait."""
        for one in self.api.get(PODS)["items"]:
            if not one["metadata"].get("deletionTimestamp"):
                with gone_is_fine():
                    self.remove(one)
        end = time.monotonic() + BOUND_S
        while (left := self.left()) and time.monotonic() < end:
            time.sleep(0.2)
        return left

    def left(self) -> list[str]:
        """Pods, their groups, and on each node directories, records and mounts of volumes."""
        there = [
            f"{what} {one['metadata']['name']}"
            for what, path in (("pod", PODS), ("group", GROUPS))
            for one in self.api.get(path)["items"]
        ]
        return there + [part for node in self.nodes for part in volumes_on(node)]


def volumes_on(node: Node) -> list[str]:
    state = node.root / names.STATE_DIR.lstrip("/")
    found = [
        f"{node.name} {kind} {path.name}"
        for kind in ("records", "volumes")
        for path in (state / kind).glob("*")
    ]
    mounts = (node.root / "proc/1/mountinfo").read_text().splitlines()
    return found + [f"{node.name} mount {line.split()[4]}" for line in mounts if "~csi" in line]


def pod(
    name: str,
    node: str | None,
    *,
    group: str = "",
    rank: int = 0,
    world: int = 1,
    command: list[str] | None = None,
    container: Json | None = None,
    space: str = SPACE,
    **spec: Any,
) -> Json:
    """As people write it: `restricted`, annotated, without a volume of ours."""
    limits = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    hostname = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    annotations = {names.FABRIC_LABEL: NAME, **({"epfabric.io/group": group} if group else {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": space, "annotations": annotations},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "rank",
                    "image": images.reference("client"),
                    "command": command or ["python3", "-c", RANK],
                    "env": [
                        {"name": "RANK", "value": str(rank)},
                        {"name": "WORLD_SIZE", "value": str(world)},
                    ],
                    "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
                    "securityContext": limits,
                    **(container or {}),
                }
            ],
            **hostname,
            **spec,
        },
    }
