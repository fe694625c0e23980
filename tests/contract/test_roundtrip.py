"""What the mirror writes, the API server stores and gives back; and people can read about it."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
import yaml
from epfabric_crds import EPFabric, EPFabricNode, EPGroup, to_dict
from epfabric_crds.definitions import schema
from harness.cluster import Cluster

Kind = type[EPFabric] | type[EPFabricNode] | type[EPGroup]

FULL_FABRIC = """
nodeSelector: {a: b}
namespaceSelector:
  matchLabels: {a: b}
  matchExpressions: [{key: c, operator: NotIn, values: [d]}]
transport: {type: libfabric, allowTcp: true}
nics:
  mode: Configure
  selector: {drivers: [mlx5_core], names: [eth*], pciAddresses: ["0000:3b:00.0"],
    cidrs: [10.0.0.0/8]}
  mtu: 9000
  roceMode: v2
  rails: Connected
  trust: dscp
  tos: 96
  pfc: 0,0,0,1,0,0,0,0
  ecn: true
fifo: {depth: 2048, batch: 4, ringsPerProxy: 4, signals: 32}
proxies: {perGPU: 2, numa: Strict, idle: spin, drainBatch: 16, maxInflight: 128,
  maxInflightBytes: 33554432, adaptive: false}
lowLatency: {packing: 4, earlyPop: false}
highThroughput: {channels: 4, qpSelection: roundRobin, nicsPerGPU: 2}
atomics: emulated
barrier: {algorithm: dissemination, timeout: 1m, joinTimeout: 1h}
onRankLoss: Mask
agent:
  cdiDevices: [rdma.example/nic=all]
  pools:
  - name: big
    nodeSelector: {size: big}
    resources: {requests: {cpu: "4", memory: 1.5Gi}, limits: {memory: 4Gi}}
    hugepages: {pageSize: 1Gi, amount: 8Gi}
memory: {perPod: 1Gi, perNode: 8Gi}
tenants:
- {name: t, namespaceSelector: {matchLabels: {t: t}}, maxSessions: 8, maxMemory: 1Gi,
   maxInflight: 64, maxGroups: 4}
update: {maxUnavailable: 2, deadline: 24h, paused: true}
telemetry: {endpoint: "http://collector:4318", interval: 30s, histogramScale: 4,
  traces: {ratio: 0.25, slow: 500us, endpoint: "http://jaeger:4318"}}
"""
CONDITION = """{type: Ready, status: "True", reason: R, message: m,
  lastTransitionTime: "2026-01-01T00:00:00Z", observedGeneration: 1}"""
FABRIC_STATUS = f"""
observedGeneration: 1
nodes: {{selected: 3, assigned: 2, contested: 1, notReady: 0, ready: 1, failing: 1}}
failing: [{{node: a, reason: R, message: m}}]
transports: [{{type: libfabric/tcp, nodes: 1}}]
sessions: 4
conditions: [{CONDITION}]
"""
NODE_STATUS = f"""
observedGeneration: 1
endpoint: 10.0.0.1:7470
transport: {{type: libfabric, provider: tcp;ofi_rxm, reason: allowed}}
topology:
  numaNodes: 2
  cpus: 0-15
  gpus: [{{uuid: GPU-1, pciAddress: "0000:3b:00.0", vendor: nvidia, numaNode: 0}}]
  nics: [{{name: eth0, rdmaDevice: mlx5_0, driver: mlx5_core, pciAddress: "0000:3b:00.1",
    numaNode: -1, rail: 0, addresses: [10.0.0.1], mtu: 9000, speedMbps: 400000, state: up}}]
capabilities: [loopback]
nics:
- name: eth0
  state: Refused
  settings: [{{name: mtu, state: Refused, wanted: "9000", actual: "1500", message: why}}]
nicRoom:
- device: mlx5_0
  queuePairs: {{used: 36, limit: 262144}}
  registrations: {{used: 20, limit: 16777216}}
proxies: [{{session: n/p/0, index: 0, cpu: 3, numaNode: 0}}]
sessions: 1
groups: [n/p]
peerMemory: [{{group: n/p, nvlink: none, reason: why}}]
agent: {{podUid: u, version: "1.0", abi: "1", peers: 1-2}}
conditions: [{CONDITION}]
"""
GROUP_STATUS = """
phase: Ready
reason: all ranks are there
masked: "2,5"
epoch: 2
coordinator: {node: a, endpoint: "10.0.0.1:7470"}
nodes: [{node: a, endpoint: "10.0.0.1:7470", ranks: "0-1,4"}]
barriers: {count: 10, p50Seconds: 0.001, p99Seconds: 0.01, slowestRank: 3, slowestShare: 0.5}
"""
NODE_ONLY = {"nodeSelector", "namespaceSelector", "agent", "tenants", "update"}


def cases() -> list[tuple[Kind, dict[str, Any], dict[str, Any]]]:
    spec = yaml.safe_load(FULL_FABRIC)
    node = {k: v for k, v in spec.items() if k not in NODE_ONLY} | {
        "fabric": "f",
        "nodeUid": "u",
        "cordon": "c",
        "tenants": [
            {name: value for name, value in tenant.items() if name != "namespaceSelector"}
            for tenant in spec["tenants"]
        ],
    }
    return [
        (EPFabric, spec, yaml.safe_load(FABRIC_STATUS)),
        (EPFabricNode, node, yaml.safe_load(NODE_STATUS)),
        (EPGroup, {"fabric": "f", "worldSize": 8}, yaml.safe_load(GROUP_STATUS)),
    ]


def untold(rule: dict[str, Any], value: Any, where: str) -> list[str]:
    """Fields of the schema that the case does not set."""
    if "items" in rule:
        return untold(rule["items"], value[0], f"{where}[]") if value else [where]
    return [
        missing
        for name, inner in rule.get("properties", {}).items()
        for missing in (
            untold(inner, value[name], f"{where}.{name}") if name in value else [f"{where}.{name}"]
        )
    ]


@pytest.mark.parametrize(
    ("kind", "spec", "status"), cases(), ids=lambda v: getattr(v, "__name__", "")
)
def test_every_field_comes_back_as_it_was(
    api: Cluster, kind: Kind, spec: dict[str, Any], status: dict[str, Any]
) -> None:
    rule = schema(kind.__name__)["properties"]
    # An expression of a tenant's selector is the same schema as the fabric's own.
    assert [
        field
        for field in untold(rule["spec"], spec, "spec") + untold(rule["status"], status, "status")
        if "tenants[].namespaceSelector" not in field
    ] == []
    meta = {"name": f"round-{uuid.uuid4().hex[:8]}"}
    if kind is EPGroup:
        meta["namespace"] = "default"
    whole = kind.from_dict({"metadata": meta, "spec": spec, "status": status})
    body = to_dict(whole)
    assert body["spec"] == spec
    plural = f"{kind.__name__.lower()}s.epfabric.io"
    try:
        api.kubectl("create", "--validate=strict", "-f", "-", stdin=json.dumps(body))
        # `create` ignores status, which is a subresource of its own.
        api.kubectl(
            *("patch", plural, meta["name"], "-n", "default", "--subresource=status"),
            *("--type=merge", "-p", json.dumps({"status": body["status"]})),
        )
        stored = api.kubectl("get", plural, meta["name"], "-n", "default", "-o", "json")
        back = kind.from_dict(json.loads(stored))
        assert back.spec == whole.spec
        assert back.status == whole.status
    finally:
        api.kubectl("delete", plural, meta["name"], "-n", "default", "--ignore-not-found")


def test_the_servers_defaults_are_the_mirrors(api: Cluster) -> None:
    body = {"metadata": {"name": "contract-defaults"}, "spec": {"namespaceSelector": {}}}
    mine = EPFabric.from_dict(body)
    sent = {"apiVersion": mine.api_version, "kind": mine.kind, **body}
    answer = api.kubectl(
        *("create", "--dry-run=server", "-o", "json", "-f", "-"), stdin=json.dumps(sent)
    )
    stored = json.loads(answer)
    assert EPFabric.from_dict(stored).spec == mine.spec
    for name, value in to_dict(mine.spec).items():
        assert stored["spec"][name] == value, name


def test_explain_documents_every_field(api: Cluster) -> None:
    text = api.kubectl("explain", "epfabric.spec")
    for name, rule in schema("EPFabric")["properties"]["spec"]["properties"].items():
        assert f"  {name}\t" in text
        assert " ".join(rule["description"].split()[:4]) in " ".join(text.split())
    assert "Slots per ring." in api.kubectl("explain", "epf.spec.fifo.depth")
    assert "people only read it" in " ".join(api.kubectl("explain", "epfn").split())


def test_short_names_and_the_category_list_all_three(api: Cluster) -> None:
    api.kubectl("get", "epf,epfn,epg", "-A")
    resources = api.kubectl("api-resources", "--categories=epfabric-all", "-o", "name").split()
    assert sorted(resources) == [
        "epfabricnodes.epfabric.io",
        "epfabrics.epfabric.io",
        "epgroups.epfabric.io",
    ]
