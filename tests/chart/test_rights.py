"""What each account may do: an agent for its own node only, the operator on Nodes, the driver."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from chart.accounts import A, Accounts, B, epfabricnode
from chart.conftest import FABRIC, OTHER, TEAM
from chart.objects import NODES, SYSTEM, As, Object, Refused
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def report(name: str, endpoint: str) -> Object:
    made = epfabricnode(name, FABRIC)
    del made["spec"]
    return {**made, "status": {"endpoint": endpoint}}


def test_an_agent_writes_its_own_nodes_status(accounts: Accounts) -> None:
    for who, name in ((accounts.agent_a, A), (accounts.agent_b, B)):
        written = who.apply(report(name, "10.0.0.1:7470"), "epfabric-agent", subresource="status")
        assert written["status"]["endpoint"] == "10.0.0.1:7470"


def test_an_agent_cannot_write_another_nodes_status(installed: As, accounts: Accounts) -> None:
    before = installed.get("epfabricnodes", B).get("status")
    with pytest.raises(Refused, match=f"agent of the node {A} may not write the EPFabricNode {B}"):
        accounts.agent_a.apply(report(B, "6.6.6.6:1"), "epfabric-agent", subresource="status")
    assert installed.get("epfabricnodes", B).get("status") == before


def test_a_token_that_is_bound_to_no_pod_writes_nothing(accounts: Accounts) -> None:
    with pytest.raises(Refused, match="bound to no pod"):
        accounts.agent_unbound.apply(report(A, "1.1.1.1:1"), "x", subresource="status")
    with pytest.raises(Refused, match="bound to no pod"):
        accounts.agent_unbound.create(lease(f"epfabric-agent-{A}"))


def test_an_agent_changes_no_spec_and_deletes_no_node(accounts: Accounts) -> None:
    with pytest.raises(Refused, match="forbidden"):
        accounts.agent_a.patch("epfabricnodes", A, {"spec": {"fabric": "other"}})
    with pytest.raises(Refused, match="forbidden"):
        accounts.agent_a.delete("epfabricnodes", A)


def lease(name: str, where: str = NODES) -> Object:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": where},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 40},
    }


def test_an_agent_renews_its_own_lease_only(installed: As, accounts: Accounts) -> None:
    accounts.agent_a.create(lease(f"epfabric-agent-{A}"))
    renewed = lease(f"epfabric-agent-{A}")
    renewed["spec"]["leaseDurationSeconds"] = 50
    accounts.agent_a.apply(renewed, "kubectl-create")
    for name in (f"epfabric-agent-{B}", "epfabric-operator", f"epfabric-agent-{A}-x"):
        with pytest.raises(Refused, match=f"may not write the Lease {name}"):
            accounts.agent_a.create(lease(name))
    with pytest.raises(Refused, match="may not write the Lease"):
        accounts.agent_b.apply(renewed, "epfabric-agent")
    with pytest.raises(Refused, match="forbidden"):
        accounts.agent_a.create(lease(A, "kube-node-lease"))
    installed.delete("lease", f"epfabric-agent-{A}", NODES)


def event(name: str, where: str = TEAM, **changes: Any) -> Object:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": where},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Warning",
        "reason": "Test",
        "action": "Hello",
        "reportingController": "epfabric.io/agent",
        "reportingInstance": A,
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "some", "namespace": where},
        **changes,
    }


def test_an_agents_events_are_about_pods_of_its_fabrics_namespaces(
    installed: As, accounts: Accounts
) -> None:
    accounts.agent_a.create(event("good"))
    installed.delete("events.events.k8s.io", "good", TEAM)
    about_a_service = {"apiVersion": "v1", "kind": "Service", "name": "some", "namespace": TEAM}
    for change in (
        {"reportingInstance": B},
        {"reportingController": "kubelet"},
        {"regarding": about_a_service},
    ):
        with pytest.raises(Refused, match="may only create Events, in its own name"):
            accounts.agent_a.create(event("bad", **change))
    with pytest.raises(Refused, match=f"may not write in the namespace {OTHER}"):
        accounts.agent_a.create(event("elsewhere", OTHER))


def certificate_request(name: str, signer: str) -> Object:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"epfabric:agent:{A}")])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject)
    pem = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": signer,
            "request": base64.b64encode(pem).decode(),
            "usages": ["digital signature", "client auth"],
            "expirationSeconds": 86400,
        },
    }


def test_an_agent_asks_only_our_signer_and_the_server_says_who_asked(
    installed: As, accounts: Accounts
) -> None:
    made = accounts.agent_a.create(certificate_request("chart-csr", "epfabric.io/agent"))
    assert made["spec"]["username"] == f"system:serviceaccount:{NODES}:epfabric-agent"
    assert made["spec"]["extra"]["authentication.kubernetes.io/node-name"] == [A]
    for signer in ("kubernetes.io/kube-apiserver-client", "kubernetes.io/kubelet-serving"):
        with pytest.raises(Refused, match=r"only the signer epfabric\.io/agent"):
            accounts.agent_a.create(certificate_request("chart-csr-2", signer))
    with pytest.raises(Refused, match="bound to no pod"):
        accounts.agent_unbound.create(certificate_request("chart-csr-3", "epfabric.io/agent"))
    with pytest.raises(Refused, match="forbidden"):
        accounts.agent_a.run("certificate", "approve", "chart-csr")
    installed.delete("csr", "chart-csr")


def test_the_operator_labels_nodes_with_our_labels(installed: As, accounts: Accounts) -> None:
    operator = accounts.operator
    labels = {"epfabric.io/fabric": "chart-moe", "epfabric.io/pool": "p"}
    operator.patch("node", A, {"metadata": {"labels": labels}})
    found = installed.get("node", A)["metadata"]["labels"]
    assert found == {"zone": "a", **labels}
    operator.patch("node", A, {"metadata": {"labels": dict.fromkeys(labels)}})
    assert installed.get("node", A)["metadata"]["labels"] == {"zone": "a"}


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"zone": "b"}}},
        {"metadata": {"labels": {"zone": None}}},
        {"metadata": {"labels": {"new": "label"}}},
        {"metadata": {"labels": {"epfabric.iox": "y"}}},
        {"metadata": {"labels": {"epfabric.io/fabric": "m", "zone": "b"}}},
        {"metadata": {"labels": None}},
        {"metadata": {"annotations": {"kopf.zalando.org/last": "x"}}},
        {"metadata": {"annotations": {"note": None}}},
        {"metadata": {"finalizers": ["epfabric.io/cleanup"]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}},
    ],
    ids=json.dumps,
)
def test_the_operator_changes_nothing_else_of_a_node(
    installed: As, accounts: Accounts, change: Object
) -> None:
    before = installed.get("node", A)
    with pytest.raises(Refused, match="the operator may change only labels of a Node"):
        accounts.operator.patch("node", A, change)
    after = installed.get("node", A)
    for part in ("labels", "annotations", "finalizers"):
        assert after["metadata"].get(part) == before["metadata"].get(part)
    assert after["spec"].get("unschedulable") == before["spec"].get("unschedulable")


def test_what_no_account_of_ours_may_do(accounts: Accounts) -> None:
    """A list of rights that would make an escape worth trying."""
    everyone = (accounts.agent_a, accounts.operator, accounts.csi)
    never = [
        ("create", "pods", SYSTEM),
        ("list", "secrets", SYSTEM),
        ("get", "secrets", "kube-system"),
        ("create", "clusterrolebindings", ""),
        ("escalate", "clusterroles", ""),
        ("bind", "clusterroles", ""),
        ("impersonate", "users", ""),
        ("create", "mutatingadmissionpolicies", ""),
        ("create", "mutatingwebhookconfigurations", ""),
        ("delete", "nodes", ""),
        ("patch", "nodes/status", ""),
        ("create", "pods/exec", TEAM),
        ("create", "serviceaccounts/token", SYSTEM),
    ]
    for who in everyone:
        allowed = [what for what in never if can(who, *what)]
        assert allowed == []
    for where in (SYSTEM, NODES):
        assert not can(accounts.agent_a, "get", "secrets", where)
    unused = [
        (accounts.agent_a, "list", "certificatesigningrequests", ""),
        (accounts.agent_a, "patch", "events.events.k8s.io", TEAM),
        (accounts.agent_a, "list", "epgroups", TEAM),
        (accounts.agent_a, "get", "leases", NODES),
        (accounts.agent_a, "create", "leases", SYSTEM),
        (accounts.operator, "list", "leases", SYSTEM),
        (accounts.operator, "create", "leases", NODES),
        (accounts.operator, "create", "secrets", NODES),
        (accounts.operator, "get", "configmaps", NODES),
        (accounts.operator, "delete", "configmaps", NODES),
        (accounts.operator, "update", "leases", SYSTEM),
        (accounts.operator, "patch", "secrets", SYSTEM),
        (accounts.operator, "get", "namespaces", ""),
    ]
    assert [(verb, what) for who, verb, what, where in unused if can(who, verb, what, where)] == []
    assert not can(accounts.csi, "list", "namespaces", "")
    assert can(accounts.csi, "get", "namespaces", "")
    assert can(accounts.operator, "patch", "nodes", "")


def can(who: As, verb: str, resource: str, where: str) -> bool:
    place = ("-n", where) if where else ()
    kind, _, subresource = resource.partition("/")
    what = (kind, f"--subresource={subresource}") if subresource else (kind,)
    done = who.cluster.try_kubectl(f"--token={who.token}", "auth", "can-i", verb, *what, *place)
    answer = done.stdout.strip().splitlines()[-1]
    assert answer in ("yes", "no"), done.stdout + done.stderr
    return answer == "yes"
