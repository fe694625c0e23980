"""What the contract tests stand on: nodes that stay ready, an operator process, agents' words.

Used by conftest.py. Everything carries a prefix of its own, since the cluster is shared.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from epfabric_crds import names
from harness.cluster import Cluster
from harness.kubelet.api import MERGE, Api, ApiError
from harness.process import Process, wait_until

OPERATOR = Path(sys.executable).with_name("epfabric-operator")
NAMESPACE = "epfabric-contract"  # for the operator
NODES_NAMESPACE = "epfabric-contract-nodes"  # for agents
HOMES = {names.OPERATOR_ACCOUNT: NAMESPACE}  # of accounts; the others are at the agents
WAIT_S = 120.0
HEARTBEAT_S = 5.0
EPFABRIC = f"/apis/{names.API_VERSION}"
MANAGER = "contract"


def stamp(ago_s: float = 0.0) -> str:
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=ago_s)
    return then.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Stand:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = Api(cluster.kubeconfig)
        self.objects = cluster.objects()  # tests ask often, and kubectl takes a process each time
        self.prefix = f"c{uuid.uuid4().hex[:6]}"
        self.addresses: dict[str, str] = {}  # of each node that was made, in the order of making
        self._nodes: set[str] = set()
        self._agents: set[str] = set()
        self._over = threading.Event()
        self._beat = threading.Thread(target=self._heartbeat, daemon=True)
        self._beat.start()

    # --- the API, as an administrator

    def json(self, *args: str) -> Any:
        """What `kubectl` with these arguments prints as JSON; a single object comes faster."""
        if len(args) in (3, 5) and args[0] == "get":
            return self._read(*args[1:])
        return json.loads(self.cluster.kubectl(*args, "-o", "json"))

    def find(self, *args: str) -> Any:
        """The object of this kind and name, and maybe `-n` and a namespace; None without it."""
        try:
            return self._read(*args)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def _read(self, kind: str, name: str, *namespace: str) -> Any:
        return self.objects.get(kind, name, *namespace[1:])

    def apply(self, body: dict[str, Any]) -> None:
        self.objects.apply(body, MANAGER)

    def delete(self, kind: str, *names_of: str, namespace: str = "") -> None:
        """Returns once they are gone, or were not there."""
        for name in names_of:
            self.objects.delete(kind, name, namespace)

    def eventually(self, check: Callable[[], bool], what: str, *processes: Process) -> None:
        wait_until(check, WAIT_S, what, *processes)

    # --- fabrics

    def fabric(self, name: str, group: str | None = None, **spec: Any) -> dict[str, Any]:
        """An EPFabric over the nodes of `group`, by default those of its own name."""
        return {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabric",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"contract": group or name},
                "namespaceSelector": {"matchLabels": {"contract": name}},
                "transport": {"allowTcp": True},
                **spec,
            },
        }

    def condition(self, kind: str, name: str, type_: str) -> dict[str, Any]:
        found = self.find(kind, name) or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == type_), {})

    def label(self, node: str) -> str | None:
        labels: dict[str, str] = self.json("get", "node", node)["metadata"].get("labels", {})
        return labels.get(names.FABRIC_LABEL)

    # --- nodes

    def node(self, name: str, group: str) -> str:
        """A Node with a Ready condition; its uid."""
        self.delete("node", name)
        labels = {"contract": group, "kubernetes.io/hostname": name}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        self.objects.create(node)
        self.addresses.setdefault(name, f"127.0.4.{len(self.addresses) + 1}")
        status = {
            "status": {
                "addresses": [{"type": "InternalIP", "address": self.addresses[name]}],
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "True",
                        "reason": "Test",
                        "message": "ready",
                        "lastHeartbeatTime": stamp(),
                        "lastTransitionTime": stamp(),
                    }
                ],
                "allocatable": {"pods": "20", "cpu": "8", "memory": "8Gi"},
                "capacity": {"pods": "20", "cpu": "8", "memory": "8Gi"},
            }
        }
        self.objects.patch("node", name, status, subresource="status")
        self._nodes.add(name)
        uid: str = self.json("get", "node", name)["metadata"]["uid"]
        return uid

    def silence(self, node: str) -> None:
        """The node's kubelet stops, and Kubernetes takes the node for lost."""
        self._nodes.discard(node)
        patch = {
            "status": {
                "conditions": [
                    {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
                ]
            }
        }
        self.api.patch(f"/api/v1/nodes/{node}/status", patch)

    def agents_pods(self, fabric: str) -> list[dict[str, Any]]:
        label = f"{names.FABRIC_LABEL}={fabric}"
        found = self.api.get(f"/api/v1/namespaces/{NODES_NAMESPACE}/pods", labelSelector=label)
        items: list[dict[str, Any]] = found["items"]
        return items

    def end_pods(self, fabric: str) -> None:
        """What a kubelet does with pods that are being deleted; these nodes have none."""
        for pod in self.agents_pods(fabric):
            if pod["metadata"].get("deletionTimestamp"):
                name = pod["metadata"]["name"]
                self.objects.delete("pod", name, NODES_NAMESPACE, grace_s=0)

    # --- agents

    def agent(self, node: str, transport: str = "True", renewed: str | None = None) -> None:
        """What a running agent of the node writes: its Lease, then its status."""
        if renewed is None:
            self._agents.add(node)
        self._lease(names.agent_lease(node), NODES_NAMESPACE, node, renewed or stamp())
        message = "libfabric over tcp" if transport == "True" else "no NIC fits"
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabricNode",
            "metadata": {"name": node},
            "status": {
                "endpoint": "127.0.0.1:7470",
                "transport": {"type": "libfabric", "provider": "tcp;ofi_rxm", "reason": message},
                "sessions": 2,
                "conditions": [
                    {
                        "type": "TransportReady",
                        "status": transport,
                        "reason": "Chosen" if transport == "True" else "NoNic",
                        "message": message,
                        "lastTransitionTime": stamp(),
                    }
                ],
            },
        }
        self.objects.apply(body, names.AGENT_MANAGER, subresource="status")

    def mute(self, node: str) -> None:
        """The agent's Lease is not renewed any more."""
        self._agents.discard(node)

    def _lease(self, name: str, namespace: str, holder: str, renewed: str) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": renewed}
        try:
            self.api.patch(f"{path}/{name}", {"spec": spec}, MERGE)
        except ApiError as error:
            if error.code != 404:
                raise
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            self.api.post(path, {**lease, "metadata": {"name": name}, "spec": spec})

    def _heartbeat(self) -> None:
        while not self._over.wait(HEARTBEAT_S):
            for node in sorted(self._nodes):
                with contextlib.suppress(ApiError):
                    self._lease(node, "kube-node-lease", node, stamp())
            for node in sorted(self._agents):
                with contextlib.suppress(ApiError):
                    self._lease(names.agent_lease(node), NODES_NAMESPACE, node, stamp())

    # --- tokens and certificate requests

    def token_kubeconfig(self, folder: Path, node: str, account: str = names.AGENT_ACCOUNT) -> Path:
        """A kubeconfig with a token that is bound to a pod of `account` on `node`."""
        pod = f"{self.prefix}-{account}-{node}"[:60]
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": pod, "namespace": NODES_NAMESPACE},
            "spec": {
                "nodeName": node,
                "serviceAccountName": account,
                "containers": [{"name": "agent", "image": "none"}],
            },
        }
        self.apply(body)
        uid = self.json("get", "pod", pod, "-n", NODES_NAMESPACE)["metadata"]["uid"]
        bound = (
            "--bound-object-kind=Pod",
            f"--bound-object-name={pod}",
            f"--bound-object-uid={uid}",
        )
        return self._token_file(folder / f"{pod}.kubeconfig", account, *bound)

    def account_kubeconfig(self, account: str) -> Path:
        """A kubeconfig of an account that is bound to no pod."""
        return self._token_file(self.cluster.folder / f"{self.prefix}-{account}", account)

    def _token_file(self, path: Path, account: str, *bound: str) -> Path:
        token = self.cluster.kubectl(
            "create", "token", account, "-n", HOMES.get(account, NODES_NAMESPACE), *bound
        ).strip()
        wait_until(self.cluster.objects(token).may_ask, WAIT_S, f"the token of {account} is known")
        config = json.loads(
            self.cluster.kubectl("config", "view", "--raw", "--flatten", "-o", "json")
        )
        config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
        path.write_text(json.dumps(config))
        return path

    def csr(self, name: str, pem: bytes, usages: list[str]) -> dict[str, Any]:
        return {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "signerName": names.SIGNER,
                "request": base64.b64encode(pem).decode(),
                "expirationSeconds": names.CERTIFICATE_SECONDS,
                "usages": usages,
            },
        }

    # --- the operator

    @contextlib.contextmanager
    def operator(self, name: str = "operator") -> Iterator[Process]:
        process = self.start_operator(name)
        try:
            yield process
        finally:
            process.stop()

    def start_operator(self, name: str = "operator") -> Process:
        process = self.launch_operator(name)
        wait_until(lambda: "leading as" in process.tail(1000), WAIT_S, "leading", process)
        return process

    def launch_operator(
        self, name: str, *options: str, kubeconfig: Path | None = None, env: Any = None
    ) -> Process:
        """One that may have to stand by."""
        return self.cluster.processes.start(
            f"{self.prefix}-{name}-{time.monotonic_ns()}",
            [
                OPERATOR,
                "--agent-image=epfabric-agent:test",
                f"--namespace={NAMESPACE}",
                f"--nodes-namespace={NODES_NAMESPACE}",
                f"--kubeconfig={kubeconfig or self.account_kubeconfig(names.OPERATOR_ACCOUNT)}",
                "--resync-seconds=1",
                "--health-port=0",
                "--metrics-port=0",
                *options,
            ],
            env=env,
        )

    def close(self) -> None:
        self._over.set()
        self._beat.join()
        for node in sorted(self._nodes):
            self.cluster.kubectl("delete", "node", node, "--ignore-not-found", "--wait=false")
