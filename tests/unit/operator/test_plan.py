"""The plan makes what is missing, deletes what is stale, and leaves the rest alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from epfabric_crds import EPFabric, EPFabricNode, to_dict
from epfabric_operator import paths
from epfabric_operator.config import parse
from epfabric_operator.plan import Plan, metadata, settings_of
from epfabric_operator.world import Ref
from unit.operator.builders import CONFIG, epnode, fabric, node, plan, world

LABEL, POOL = "epfabric.io/fabric", "epfabric.io/pool"


def bodies(made: Plan, kind: str) -> list[dict[str, Any]]:
    return [apply.body for apply in made.apply if apply.body["kind"] == kind]


def settled(owner: EPFabric, name: str) -> EPFabricNode:
    """An EPFabricNode as a plan of `owner` would have written it."""
    body = {
        "metadata": {**metadata(owner, name), "uid": f"epn-{name}"},
        "spec": {"fabric": owner.metadata.name, "nodeUid": f"uid-{name}"}
        | {k: v for k, v in to_dict(owner.spec).items() if k in _shared()},
    }
    return EPFabricNode.from_dict(body)


def _shared() -> set[str]:
    from epfabric_crds import Settings
    from epfabric_crds.convert import fields_of

    return set(fields_of(Settings))


def test_a_new_fabric_gets_everything() -> None:
    moe = fabric()
    made = plan("moe", world(moe, node("n", pool="moe"), node("m", pool="x")))
    assert [(r.node.name, dict(r.labels)) for r in made.relabel] == [("n", {LABEL: "moe"})]
    assert made.delete == ()
    assert [a.path.rsplit("/", 1)[1] for a in made.apply] == [
        "epfabric-inject-moe",
        "epfabric-agent-moe",
        "n",
    ]
    (written,) = bodies(made, "EPFabricNode")
    assert written["spec"]["nodeUid"] == "uid-n"
    assert written["spec"]["fabric"] == "moe"
    for body in (a.body for a in made.apply):
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["kind"]) == ("uid-moe", "EPFabric")
        assert "blockOwnerDeletion" not in owner
        assert body["metadata"]["labels"][LABEL] == "moe"


def test_what_a_node_is_told_is_all_that_agents_read() -> None:
    moe = fabric(proxies={"perGPU": 1}, barrier={"timeout": "1s"})
    (written,) = bodies(plan("moe", world(moe, node("n", pool="moe"))), "EPFabricNode")
    parsed = EPFabricNode.from_dict(written)
    assert settings_of(moe) == {
        f.name: getattr(parsed.spec, f.name)
        for f in dataclasses.fields(parsed.spec)
        if f.name not in ("fabric", "node_uid", "cordon")
    }


def test_a_settled_fabric_needs_no_write_to_any_node() -> None:
    moe = fabric()
    made = plan("moe", world(moe, node("n", pool="moe", of="moe"), settled(moe, "n")))
    assert made.relabel == ()
    assert made.delete == ()
    assert bodies(made, "EPFabricNode") == []


def test_a_changed_setting_reaches_the_node() -> None:
    old, new = fabric(), fabric(fifo={"depth": 2048})
    made = plan("moe", world(new, node("n", pool="moe", of="moe"), settled(old, "n")))
    (written,) = bodies(made, "EPFabricNode")
    assert written["spec"]["fifo"]["depth"] == 2048
    assert made.delete == ()


def test_a_node_made_anew_has_its_object_replaced_by_uid() -> None:
    moe = fabric()
    stale = epnode("n", uid="uid-of-before")
    made = plan("moe", world(moe, node("n", pool="moe", of="moe"), stale))
    assert made.delete == (Ref(paths.epnode("n"), "epn-n"),)
    (written,) = bodies(made, "EPFabricNode")
    assert written["spec"]["nodeUid"] == "uid-n"


def test_a_node_that_went_takes_its_object_along() -> None:
    made = plan("moe", world(fabric(), epnode("n")))
    assert made.delete == (Ref(paths.epnode("n"), "epn-n"),)
    assert bodies(made, "EPFabricNode") == []


def test_a_node_taken_over_has_the_other_fabrics_object_replaced() -> None:
    moe = fabric()
    made = plan("moe", world(moe, node("n", pool="moe"), epnode("n", "gone")))
    assert made.delete == (Ref(paths.epnode("n"), "epn-n"),)
    assert len(bodies(made, "EPFabricNode")) == 1


def test_another_fabrics_objects_are_left_alone() -> None:
    other = fabric("other")
    made = plan(
        "moe",
        world(
            fabric(),
            other,
            node("n", pool="other", of="other"),
            epnode("n", "other"),
            owned={"other": (Ref("/x", "u"),)},
        ),
        CONFIG,
    )
    assert made.delete == ()
    assert made.relabel == ()
    assert bodies(made, "EPFabricNode") == []


def test_a_fabric_that_is_gone_leaves_nothing() -> None:
    owned = {"moe": (Ref("/daemonset", "d"), Ref("/binding", "b"))}
    for left in ([], [fabric(deleted="2026-01-01T00:00:00Z")]):
        made = plan(
            "moe", world(*left, node("n", pool="moe", of="moe"), epnode("n"), owned=owned), CONFIG
        )
        assert set(made.delete) == {*owned["moe"], Ref(paths.epnode("n"), "epn-n")}
        assert [dict(r.labels) for r in made.relabel] == [{LABEL: None}]
        assert made.apply == ()


def test_pools_have_a_daemonset_each_and_never_share_a_node() -> None:
    pools = [
        {
            "name": "big",
            "nodeSelector": {"size": "big"},
            "resources": {"limits": {"memory": "1Gi"}},
            "hugepages": {"amount": "2Gi", "pageSize": "1Gi"},
        },
        {"name": "rest"},
    ]
    moe = fabric(agent={"pools": pools}, telemetry={"endpoint": "http://c:4318"})
    old = Ref(f"{paths.daemonsets(CONFIG.namespace)}/epfabric-agent-moe", "d")
    made = plan(
        "moe",
        world(moe, node("n", pool="moe", size="big"), node("m", pool="moe"), owned={"moe": (old,)}),
        CONFIG,
    )
    assert made.delete == (old,)
    assert {r.node.name: dict(r.labels) for r in made.relabel} == {
        "n": {LABEL: "moe", POOL: "big"},
        "m": {LABEL: "moe", POOL: "rest"},
    }
    big, rest = bodies(made, "DaemonSet")
    assert big["metadata"]["name"] == "epfabric-agent-moe.big"
    assert big["spec"]["template"]["spec"]["nodeSelector"] == {LABEL: "moe", POOL: "big"}
    container = big["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"memory": "1Gi", "hugepages-1Gi": "2Gi"}
    assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://c:4318"} in container["env"]
    assert container["resources"]["requests"] == {"cpu": "500m"}  # a limit is also a request
    other = rest["spec"]["template"]["spec"]["containers"][0]
    assert other["resources"] == {"requests": {"cpu": "500m", "memory": "256Mi"}}


def test_a_pool_never_has_the_daemonset_of_another_fabric() -> None:
    pooled = fabric("moe", agent={"pools": [{"name": "big"}]})
    other = fabric("moe-big")
    made = world(pooled, other)
    named = [
        {body["metadata"]["name"] for body in bodies(plan(name, made), "DaemonSet")}
        for name in ("moe", "moe-big")
    ]
    assert [len(found) for found in named] == [1, 1]
    assert not named[0] & named[1]


def test_the_pool_label_goes_with_the_pools() -> None:
    gone = node("n", **{"pool": "moe", "of": "moe", POOL: "big"})
    made = plan("moe", world(fabric(), gone))
    assert [dict(r.labels) for r in made.relabel] == [{POOL: None}]


def test_without_admission_policies_there_is_no_binding() -> None:
    config = dataclasses.replace(CONFIG, policies=None)
    made = plan("moe", world(fabric()), config)
    assert bodies(made, "MutatingAdmissionPolicyBinding") == []


def test_the_binding_carries_the_fabrics_namespaces() -> None:
    moe = fabric(namespaceSelector={"matchExpressions": [{"key": "a", "operator": "Exists"}]})
    (binding,) = bodies(plan("moe", world(moe)), "MutatingAdmissionPolicyBinding")
    assert binding["spec"]["matchResources"]["namespaceSelector"] == {
        "matchExpressions": [{"key": "a", "operator": "Exists"}]
    }
    assert binding["spec"]["paramRef"] == {"name": "moe", "parameterNotFoundAction": "Allow"}


def test_pools_that_change_do_not_take_agents_from_running_groups() -> None:
    moe = fabric(agent={"pools": [{"name": "new", "nodeSelector": {}}]})
    old = Ref("/apis/apps/v1/namespaces/epfabric-system/daemonsets/epfabric-agent-moe.old", "u")
    there = node("n", pool="moe", of="moe", **{POOL: "old"})
    for groups, deleted, labels in ((["ns/g"], [], []), ([], [old], [{POOL: "new"}])):
        told = settled(moe, "n")
        told = dataclasses.replace(
            told, status=dataclasses.replace(told.status, groups=tuple(groups))
        )
        made = plan("moe", world(moe, there, told, owned={"moe": (old,)}))
        assert list(made.delete) == deleted
        assert [dict(change.labels) for change in made.relabel] == labels
        assert (made.update.summary.reason == "PoolsWait") is bool(groups)


@pytest.mark.parametrize("root", ["/var/lib/kubelet", "/data/kubelet/"])
def test_agents_see_what_the_kubelet_gave_to_pods_where_the_kubelets_root_is(root: str) -> None:
    told = parse([], {"EPFABRIC_AGENT_IMAGE": "agent:1", "EPFABRIC_KUBELET_ROOT": root})
    config = dataclasses.replace(CONFIG, kubelet_root=told.kubelet_root)
    (made,) = bodies(plan("moe", world(fabric(), node("n", pool="moe")), config), "DaemonSet")
    pod = made["spec"]["template"]["spec"]
    (volume,) = [one for one in pod["volumes"] if one["name"] == "pod-resources"]
    assert volume["hostPath"]["path"] == root.rstrip("/") + "/pod-resources"
    mounts = pod["containers"][0]["volumeMounts"]
    (mount,) = [one for one in mounts if one["name"] == "pod-resources"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/var/lib/kubelet/pod-resources", True)


def test_a_kubelets_root_that_is_no_path_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--agent-image=agent:1", "--kubelet-root=kubelet"], {})
    assert "'kubelet' is no absolute path" in capsys.readouterr().err


def test_agents_are_pulled_as_the_installation_says() -> None:
    there = world(fabric(), node("n", pool="moe"))
    for policy in ("Always", "Never"):
        environ = {"EPFABRIC_AGENT_IMAGE": "agent:1", "EPFABRIC_AGENT_PULL_POLICY": policy}
        told = parse([], environ).agent_pull_policy
        config = dataclasses.replace(CONFIG, agent_pull_policy=told)
        (made,) = bodies(plan("moe", there, config), "DaemonSet")
        containers = made["spec"]["template"]["spec"]["containers"]
        assert [one["imagePullPolicy"] for one in containers] == [policy]
