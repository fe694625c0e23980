"""Each check of doctor finds its fault, and is silent where there is none."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from epfabric_crds import EPFabric, EPFabricNode, EPGroup, definitions, names
from epfabric_operator.cli.doctor import command
from epfabric_operator.cli.doctor.facts import Facts

NOW = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
LONG_AGO, JUST_NOW = "2026-07-01T10:00:00Z", "2026-07-01T11:59:50Z"
Object = dict[str, Any]


def condition(type_: str, status: str, reason: str = "R", message: str = "m") -> Object:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": LONG_AGO,
    }


def fabric(**spec: Any) -> EPFabric:
    pool = {"name": "all", "resources": {"limits": {"cpu": "4", "memory": "8Gi"}}}
    body = {"namespaceSelector": {}, "agent": {"pools": [pool]}, **spec}
    return EPFabric.from_dict(
        {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabric",
            "metadata": {"name": "moe"},
            "spec": body,
            "status": {"conditions": [condition("PolicyOverlap", "False")]},
        }
    )


def nic(name: str, driver: str = "mlx5_core", **more: Any) -> Object:
    return {"name": name, "rdmaDevice": f"r{name}", "driver": driver, "mtu": 4096, **more}


def node(name: str, nics: list[Object], *conditions: Object, provider: str = "") -> EPFabricNode:
    kept = {one["type"]: one for one in (condition("Ready", "True"), *conditions)}
    return EPFabricNode.from_dict(
        {
            "apiVersion": names.API_VERSION,
            "kind": "EPFabricNode",
            "metadata": {"name": name},
            "spec": {"fabric": "moe", "nodeUid": "u"},
            "status": {
                "transport": {"type": "verbs", "provider": provider, "reason": "why"},
                "topology": {"numaNodes": 2, "nics": nics},
                "conditions": list(kept.values()),
            },
        }
    )


def group(phase: str, reason: str = "", world: int = 8, **status: Any) -> EPGroup:
    return EPGroup.from_dict(
        {
            "apiVersion": names.API_VERSION,
            "kind": "EPGroup",
            "metadata": {"name": "g", "namespace": "ns"},
            "spec": {"fabric": "moe", "worldSize": world},
            "status": {"phase": phase, "reason": reason, **status},
        }
    )


def pod(phase: str, **more: Any) -> Object:
    volume = {"name": "epfabric", "csi": {"driver": names.CSI_DRIVER}}
    metadata = {
        "name": "rank-0",
        "namespace": "ns",
        "annotations": {names.FABRIC_ANNOTATION: more.pop("fabric", "moe")},
        "creationTimestamp": more.pop("created", LONG_AGO),
    }
    if ends := more.pop("ends", None):
        metadata["deletionTimestamp"] = ends
    spec = {"volumes": [volume], "nodeName": more.pop("node", "n1")}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, **more}}


def own(**status: Any) -> Object:
    metadata = {"name": "epfabric-agent-x", "namespace": names.NODES_NAMESPACE}
    return {
        "metadata": metadata,
        "spec": {"nodeName": "n1"},
        "status": {"containerStatuses": [{"name": "agent", **status}]},
    }


def authority(days: int) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - datetime.timedelta(days=365))
        .not_valid_after(NOW + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


def csr(created: str, *conditions: Object) -> Object:
    metadata = {"name": "csr-1", "creationTimestamp": created}
    return {"metadata": metadata, "status": {"conditions": list(conditions)}}


def older(kind: str, without: str) -> Object:
    """The CRD of an earlier version: one field of spec is not there."""
    made: Object = copy.deepcopy(definitions.definition(kind))
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"][without]
    return made


def csi_node(name: str, *drivers: str) -> Object:
    return {"metadata": {"name": name}, "spec": {"drivers": [{"name": d} for d in drivers]}}


HEALTHY = Facts(
    now=NOW,
    fabrics=(fabric(),),
    epnodes=(node("n1", [nic("a"), nic("b")]), node("n2", [nic("a"), nic("b")])),
    groups=(
        group(
            "Ready",
            barriers={
                "count": 5000,
                "p50Seconds": 1e-5,
                "p99Seconds": 3e-5,
                "slowestRank": 3,
                "slowestShare": 0.2,
            },
        ),
    ),
    nodes=tuple(
        {"metadata": {"name": n}, "status": {"conditions": [condition("Ready", "True")]}}
        for n in ("n1", "n2")
    ),
    own_pods=(own(restartCount=1),),
    user_pods=(pod("Running"), pod("Pending", created=JUST_NOW), pod("Running", ends=JUST_NOW)),
    csi_nodes=(csi_node("n1", names.CSI_DRIVER), csi_node("n2", "other", names.CSI_DRIVER)),
    definitions=tuple(definitions.definition(kind) for kind in definitions.FILES),
    requests=(csr(JUST_NOW), csr(LONG_AGO, condition("Approved", "True"))),
    operator_lease={"spec": {"renewTime": JUST_NOW, "holderIdentity": "op"}},
    bindings=({"metadata": {"name": names.policy_binding("moe")}},),
    authority=authority(300),
    kubelets={
        n: {"cpuManagerPolicy": "static", "topologyManagerPolicy": "best-effort"}
        for n in ("n1", "n2")
    },
)
TWO = [nic("a"), nic("b")]
EFA = [nic("a", "efa"), nic("b", "efa")]
OOM = {"lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
FAULTS: dict[str, tuple[str, Facts]] = {}


def fault(check: str, case: str, **changes: Any) -> None:
    FAULTS[f"{check}-{case}" if case else check] = (check, dataclasses.replace(HEALTHY, **changes))


def slow(**barriers: Any) -> tuple[EPGroup, ...]:
    return (group("Ready", barriers={"count": 500, "p50Seconds": 1e-5, **barriers}),)


fault(
    "efa-small-packets",
    "",
    fabrics=(fabric(lowLatency={"packing": 1}),),
    epnodes=(node("n1", EFA), node("n2", EFA)),
)
fault("tcp", "idle-rdma", epnodes=(node("n1", TWO, provider="tcp;ofi_rxm"), node("n2", TWO)))
fault("tcp", "no-rdma", epnodes=tuple(node(n, [], provider="tcp;ofi_rxm") for n in ("n1", "n2")))
fault("mtu-differs", "", epnodes=(node("n1", TWO), node("n2", [nic("a"), nic("b", mtu=1500)])))
fault("rails-differ", "", epnodes=(node("n1", TWO), node("n2", [nic("a")])))
fault("link-down", "", epnodes=(node("n1", [nic("a", state="down"), nic("b")]), node("n2", TWO)))
fault(
    "no-atomics",
    "efa",
    fabrics=(fabric(atomics="hardware"),),
    epnodes=(node("n1", EFA), node("n2", EFA)),
)
fault(
    "no-atomics",
    "several",
    fabrics=(fabric(atomics="hardware"),),
)
fault(
    "barrier-time-out",
    "",
    groups=(group("Failed", "barrier 7 of epoch 1 timed out; rank 3 did not come"),),
)
fault(
    "join-time-out", "", groups=(group("Failed", "rank 3 of 8 did not join group ns/g in 300 s"),)
)
fault("group-failed", "", groups=(group("Failed", "rank 2 of pod ns/p on node n1 was lost"),))
fault("masked-ranks", "", groups=(group("Ready", "goes on without rank 3", masked="3"),))
fault("straggler", "", groups=slow(p99Seconds=2e-5, slowestRank=3, slowestShare=0.9))
fault("slow-barriers", "", groups=slow(p99Seconds=0.2, slowestRank=3, slowestShare=0.1))
fault("cpu-manager-policy", "", kubelets={"n1": {"cpuManagerPolicy": "none"}, "n2": {}})
fault("topology-manager-policy", "", kubelets={"n1": {"cpuManagerPolicy": "static"}})
fault("agents-without-cpus", "no-pool", fabrics=(fabric(agent={}),))
fault(
    "agents-without-cpus",
    "half-a-cpu",
    fabrics=(
        fabric(
            agent={
                "pools": [{"name": "p", "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}]
            }
        ),
    ),
)
fault(
    "too-few-cpus",
    "",
    epnodes=(node("n1", TWO, condition("CPUConstrained", "True")), node("n2", TWO)),
)
fault(
    "remote-proxies",
    "",
    epnodes=(node("n1", TWO, condition("ProxiesLocal", "False")), node("n2", TWO)),
)
fault(
    "old-definitions",
    "",
    definitions=(older("EPFabric", "onRankLoss"), *HEALTHY.definitions[1:]),  # type: ignore[index]
)
fault("old-definitions", "missing", definitions=HEALTHY.definitions[1:])  # type: ignore[index]
fault("no-operator", "", operator_lease={"spec": {"renewTime": LONG_AGO, "holderIdentity": "op"}})
fault("no-operator", "never", operator_lease=None)
fault("driver-not-registered", "", csi_nodes=(csi_node("n1", names.CSI_DRIVER), csi_node("n2")))
fault("no-binding", "", bindings=())
fault("out-of-memory", "", own_pods=(own(**OOM),))
fault("crashes", "loop", own_pods=(own(state={"waiting": {"reason": "CrashLoopBackOff"}}),))
fault("crashes", "often", own_pods=(own(restartCount=12),))
fault("image", "", own_pods=(own(state={"waiting": {"reason": "ImagePullBackOff"}}),))
fault(
    "agent-not-ready",
    "",
    epnodes=(node("n1", TWO, condition("Ready", "False", "NoTransport")), node("n2", TWO)),
)
fault(
    "node-not-ready",
    "",
    nodes=(
        {"metadata": {"name": "n1"}, "status": {"conditions": [condition("Ready", "Unknown")]}},
    ),
    epnodes=(node("n1", TWO, condition("Ready", "Unknown")), node("n2", TWO)),
)
fault(
    "settings-wait",
    "",
    epnodes=(node("n1", TWO, condition("Degraded", "True")), node("n2", TWO)),
)
fault(
    "update-pending",
    "",
    epnodes=(node("n1", TWO, condition("UpdatePending", "True")), node("n2", TWO)),
)
fault(
    "contested-nodes",
    "",
    fabrics=(
        dataclasses.replace(
            fabric(),
            status=EPFabric.from_dict(
                {
                    "apiVersion": names.API_VERSION,
                    "kind": "EPFabric",
                    "metadata": {"name": "moe"},
                    "spec": {"namespaceSelector": {}},
                    "status": {"conditions": [condition("PolicyOverlap", "True")]},
                }
            ).status,
        ),
    ),
)
fault("terminating", "", user_pods=(pod("Running", ends=LONG_AGO),))
fault("unknown-fabric", "", user_pods=(pod("Running", fabric="meo"),))
fault("container-creating", "", user_pods=(pod("Pending"),))
fault(
    "unschedulable",
    "",
    user_pods=(pod("Pending", conditions=[condition("PodScheduled", "False")]),),
)
fault("unsigned-requests", "", requests=(csr(LONG_AGO),))
fault("denied-request", "", requests=(csr(LONG_AGO, condition("Denied", "True")),))
fault("authority-ends", "", authority=authority(3))
fault("authority-ends", "broken", authority="no certificate")


def test_a_healthy_cluster_has_no_findings() -> None:
    assert command.examine(HEALTHY) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check_and_by_no_other(name: str) -> None:
    check, facts = FAULTS[name]
    found = command.examine(facts)
    assert {one.check for one in found} == {check}
    for one in found:
        assert one.seen
        assert one.why
        assert one.todo
        assert all(one.subject in text for text in [command.text(facts, found)])


def test_every_check_of_the_families_has_a_case() -> None:
    named: set[str] = set()
    for family in command.FAMILIES:
        text = Path(str(family.__file__)).read_text()
        named |= set(re.findall(r'Finding\(\s*[^,]+,\s*"([a-z-]+)"', text))
    assert len(named) > 20
    assert named <= {check for check, _ in FAULTS.values()}


def test_errors_come_first_and_what_was_not_looked_at_is_said() -> None:
    facts = dataclasses.replace(
        HEALTHY,
        fabrics=(fabric(agent={}),),
        groups=(group("Failed", "lost"),),
        bindings=None,
        unseen=("admission bindings: not allowed: you need the right to list them",),
    )
    found = command.examine(facts)
    assert [one.severity for one in found] == ["error", "info"]
    said = command.text(facts, found)
    assert "not looked at: admission bindings: not allowed" in said
    assert said.endswith("1 error, 0 warning, 1 info")
