"""The accounts of what the chart runs, with their tokens; for tests of rights."""

from __future__ import annotations

from dataclasses import dataclass

from chart.objects import NODES, SYSTEM, As, Object, container, node, pod
from harness.process import wait_until

A, B = "chart-node-a", "chart-node-b"
KNOWN_S = 30.0


@dataclass(frozen=True)
class Accounts:
    """Who asks: the agents with the tokens of their pods, and the others."""

    agent_a: As
    agent_b: As
    agent_unbound: As
    operator: As
    csi: As


def made_accounts(admin: As, fabric: str) -> Accounts:
    """With two nodes, and what stands for the fabric's agents on them."""
    for name in (A, B):
        admin.create(node(name))
        admin.create(agent_pod(name, fabric))
        admin.create(epfabricnode(name, fabric))
    return Accounts(
        agent_a=bound(admin, pod_name(A, fabric)),
        agent_b=bound(admin, pod_name(B, fabric)),
        agent_unbound=account(admin, "epfabric-agent"),
        operator=account(admin, "epfabric-operator"),
        csi=account(admin, "epfabric-csi"),
    )


def delete_accounts(admin: As, fabric: str) -> None:
    for name in (A, B):
        admin.delete("epfabricnodes", name)
        admin.delete("pod", pod_name(name, fabric), NODES)
        admin.delete("node", name)


def pod_name(node: str, fabric: str) -> str:
    """As the DaemonSet's controller chooses it."""
    return f"epfabric-agent-{fabric}-xxxx{node[-1]}"


def agent_pod(name: str, fabric: str) -> Object:
    """Stands for the DaemonSet's pod on the node."""
    return pod(
        pod_name(name, fabric),
        NODES,
        serviceAccountName="epfabric-agent",
        nodeName=name,
        tolerations=[{"operator": "Exists"}],
        containers=[container("agent")],
    )


def epfabricnode(name: str, fabric: str) -> Object:
    return {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPFabricNode",
        "metadata": {"name": name},
        "spec": {"fabric": fabric, "nodeUid": "0"},
    }


def bound(admin: As, name: str) -> As:
    """With the token of the agent's pod."""
    uid = admin.get("pod", name, NODES)["metadata"]["uid"]
    of_pod = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
    return account(admin, "epfabric-agent", *of_pod, f"--bound-object-uid={uid}")


def account(admin: As, name: str, *more: str) -> As:
    home = SYSTEM if name == "epfabric-operator" else NODES
    token = admin.run("create", "token", name, "-n", home, "--duration=1h", *more).strip()
    wait_until(admin.cluster.objects(token).may_ask, KNOWN_S, f"the token of {name} is known")
    return As(admin.cluster, token)
