"""Each rule of the API server rejects what it should, with a sentence that a person understands."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from epfabric_agent.kube.api import Api, connect
from epfabric_agent.kube.publish import StatusWriter
from epfabric_agent.nic.report import NicReport
from epfabric_agent.runtime import Facts
from epfabric_agent.topology.cpus import Cpus
from epfabric_agent.topology.discover import Inventory
from epfabric_agent.topology.transport import Choice
from epfabric_crds import names
from epfabric_crds.definitions import FILES, schema
from epfabric_crds.node import AgentFacts, Topology
from harness.cluster import Cluster
from harness.kubelet.api import ApiError

CONDITION = {"matchLabels": {"team": "a"}}
ROCE = {"mode": "Observe", "trust": "pcp", "tos": 96}
TENANT = {"name": "a", "namespaceSelector": CONDITION}

# What is wrong, and the part of the message that tells it.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"proxies": {"maxInflight": 16385}}, "proxies.maxInflight must be at most 16384"),
    ({"proxies": {"perGPU": 9}}, "a session has at most 64 rings"),
    ({"fifo": {"ringsPerProxy": 32}}, "lower proxies.perGPU or fifo.ringsPerProxy"),
    ({"memory": {"perPod": "65Gi"}}, "memory.perPod is larger than memory.perNode"),
    ({"memory": {"perPod": "1.5Gi"}}, "memory.perPod must be a whole number of bytes"),
    ({"memory": {"perNode": "64G"}}, "memory.perNode must be a whole number of bytes"),
    ({"barrier": {"joinTimeout": "29s"}}, "barrier.joinTimeout must not be shorter"),
    ({"barrier": {"timeout": "61m", "joinTimeout": "2h"}}, "barrier.timeout must be at most 1h"),
    ({"barrier": {"timeout": "1m30s"}}, "barrier.timeout must be a whole number with one unit"),
    ({"barrier": {"joinTimeout": "25h"}}, "barrier.joinTimeout must be at most 24h"),
    ({"barrier": {"joinTimeout": "soon"}}, "barrier.joinTimeout must be a whole number with one"),
    ({"update": {"deadline": "1d"}}, "update.deadline must be a whole number with one unit"),
    (
        {"transport": {"type": "verbs", "allowTcp": True}},
        "transport.allowTcp has no meaning with this transport.type",
    ),
    ({"transport": {"type": "loopback", "allowTcp": True}}, "set type to auto or libfabric"),
    ({"nics": {"mode": "Configure"}}, "nics.mode Configure needs a setting to apply"),
    ({"nics": ROCE}, "nics.tos marks packets by DSCP, but nics.trust is pcp"),
    ({"nics": {"selector": {"cidrs": ["10.1"]}}}, "not a network in CIDR form"),
    ({"tenants": [TENANT, TENANT]}, "tenants need distinct names"),
    (
        {"tenants": [{"name": "all", "namespaceSelector": {}}, TENANT]},
        "a tenant whose namespaceSelector is empty matches every namespace and must stand last",
    ),
    ({"tenants": [{**TENANT, "maxMemory": "65Gi"}]}, "a tenant's maxMemory is larger"),
    ({"tenants": [{**TENANT, "maxMemory": "much"}]}, "maxMemory must be a whole number of bytes"),
    ({"telemetry": {"endpoint": "collector:4318"}}, "telemetry.endpoint must be a URL"),
    ({"telemetry": {"interval": "100ms"}}, "telemetry.interval must be between 1s and 10m"),
    ({"telemetry": {"traces": {"endpoint": "j:1"}}}, "telemetry.traces.endpoint must be a URL"),
    ({"telemetry": {"traces": {"slow": "1m"}}}, "telemetry.traces.slow must be a whole number of"),
    ({"telemetry": {"traces": {"slow": "0ms"}}}, "such as 10ms, or 0s for none"),
    ({"telemetry": {"traces": {"ratio": 1.5}}}, "should be less than or equal to 1"),
    ({"telemetry": {"traces": {"ratio": -0.1}}}, "should be greater than or equal to 0"),
    (
        {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "operators In and NotIn need values",
    ),
    ({"namespaceSelector": None}, "spec.namespaceSelector: Required value"),
    ({"fifo": {"depth": 1000}}, "Unsupported value: 1000: supported values"),
    ({"transport": {"type": "tcp"}}, 'supported values: "auto", "verbs", "libfabric", "loopback"'),
    ({"transprt": {}}, 'unknown field "spec.transprt"'),
]

# The same fields at their bounds, which must be let through.
RIGHT: list[dict[str, Any]] = [
    {},
    {"proxies": {"maxInflight": 16384, "perGPU": 8}},
    {"memory": {"perPod": "64Gi", "perNode": "64Gi"}},
    {"barrier": {"timeout": "1h", "joinTimeout": "24h"}},
    {"barrier": {"timeout": "500ms", "joinTimeout": "500ms"}},
    {"transport": {"type": "libfabric", "allowTcp": True}},
    {"nics": {"mode": "Configure", "mtu": 9000, "trust": "dscp", "tos": 96}},
    {"nics": {"selector": {"cidrs": ["10.1.0.0/16", "fd00::/8"]}}},
    {"tenants": [TENANT, {"name": "all", "namespaceSelector": {}, "maxMemory": "64Gi"}]},
    {"telemetry": {"endpoint": "https://collector.monitoring:4318/otlp", "interval": "1s"}},
    {"telemetry": {"traces": {"ratio": 0, "slow": "0s"}}},
    {"telemetry": {"traces": {"ratio": 1, "slow": "1us", "endpoint": "http://jaeger:4318"}}},
    {"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
]


def fabric(spec: dict[str, Any], name: str = "contract-rules") -> dict[str, Any]:
    whole = {"namespaceSelector": {}, **spec}
    return {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPFabric",
        "metadata": {"name": name},
        "spec": {k: v for k, v in whole.items() if v is not None},
    }


def refusal(api: Cluster, made: dict[str, Any]) -> str:
    with pytest.raises(ApiError) as refused:
        api.objects().create(made, dry_run=True)
    return str(refused.value)


@pytest.mark.parametrize(("spec", "sentence"), WRONG)
def test_what_contradicts_is_refused_with_a_reason(
    api: Cluster, spec: dict[str, Any], sentence: str
) -> None:
    told = refusal(api, fabric(spec))
    assert sentence in told
    # Nobody should have to read a rule, a regular expression or a stack of consequences.
    assert "evaluating rule" not in told
    assert "should match" not in told


@pytest.mark.parametrize("spec", RIGHT)
def test_what_is_at_the_bound_is_let_through(api: Cluster, spec: dict[str, Any]) -> None:
    api.objects().create(fabric(spec), dry_run=True)


@pytest.mark.parametrize("name", ["a.b", "a" * 64])
def test_a_name_that_is_no_label_is_refused(api: Cluster, name: str) -> None:
    told = refusal(api, fabric({}, name))
    assert "the name of an EPFabric becomes a label value" in told


def test_what_an_object_stands_for_cannot_change(api: Cluster) -> None:
    def body(kind: str, **spec: Any) -> str:
        return json.dumps(
            {
                "apiVersion": "epfabric.io/v1alpha1",
                "kind": kind,
                "metadata": {"name": "contract-rules", "namespace": "default"},
                "spec": spec,
            }
        )

    changes: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
        ("EPFabricNode", {"fabric": "a", "nodeUid": "1"}, {"fabric": "b"}, "fabric of an"),
        ("EPFabricNode", {"fabric": "a", "nodeUid": "1"}, {"nodeUid": "2"}, "nodeUid cannot"),
        ("EPGroup", {"fabric": "a", "worldSize": 2}, {"fabric": "b"}, "the fabric of a group"),
    ]
    for kind, before, change, sentence in changes:
        api.kubectl("apply", "-f", "-", stdin=body(kind, **before))
        try:
            done = api.try_kubectl("apply", "-f", "-", stdin=body(kind, **{**before, **change}))
            assert done.returncode != 0
            assert sentence in done.stderr
        finally:
            api.kubectl("delete", kind.lower(), "contract-rules", "-n", "default")


class Later:
    """An agent's API, when the agent is of a later version than the CRDs."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def apply(self, path: str, body: dict[str, Any], manager: str) -> None:
        body["status"]["ofLaterVersions"] = 1
        self._api.apply(path, body, manager)


def test_a_status_with_a_field_that_the_crd_lacks_is_refused_whole_and_told_of_once(
    api: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    name = "contract-old"
    node = {
        "apiVersion": names.API_VERSION,
        "kind": "EPFabricNode",
        "metadata": {"name": name},
        "spec": {"fabric": "a", "nodeUid": "1"},
    }
    inventory = Inventory(Cpus((), {}), Topology(), ())
    choice = Choice("loopback", "loopback", "chosen")
    facts = Facts("", choice, inventory, 0, (), False, True, "", NicReport())
    own = connect(api.kubeconfig)
    later = StatusWriter(cast(Api, Later(own)), name, AgentFacts())
    api.objects().apply(node, "contract")
    try:
        with caplog.at_level(logging.ERROR, "epfabric_agent.kube.publish"):
            assert not later.write(facts, "uid", 1)
            assert not later.write(facts, "uid", 1)
        (told,) = caplog.messages
        assert "apply the CRDs of the agent's version" in told
        assert ".status.ofLaterVersions" in told
        assert "status" not in api.objects().get("epfabricnode", name)
        assert StatusWriter(own, name, AgentFacts()).write(facts, "uid", 1)
        assert api.objects().get("epfabricnode", name)["status"]["conditions"]
    finally:
        api.objects().delete("epfabricnode", name)


def messages(rule: Mapping[str, Any]) -> Iterator[str]:
    yield from (v["message"] for v in rule.get("x-kubernetes-validations", ()))
    for inner in rule.get("properties", {}).values():
        yield from messages(inner)
    if "items" in rule:
        yield from messages(rule["items"])


def test_no_rule_is_without_a_case() -> None:
    told = [sentence for _, sentence in WRONG] + [
        "the name of an EPFabric becomes a label value",
        "fabric of an",
        "nodeUid cannot",
        "the fabric of a group",
    ]
    rules = {message for kind in FILES for message in messages(schema(kind))}
    assert len(rules) > 15
    assert not [rule for rule in rules if not any(part in rule for part in told)]
