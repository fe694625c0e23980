"""What the stand-in kubelet decides without touching anything: phases, expansion, identity."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.kubelet import plan, status
from harness.kubelet.launch import identity
from harness.kubelet.launch.mounts import through_links

NEW = status.State("c", "i")
UP = NEW.runs("1")
GOOD = UP.ends(0, "Completed", "")
BAD = UP.ends(3, "Error", "")
CRASHED = BAD.waits("CrashLoopBackOff")


@pytest.mark.parametrize(
    ("policy", "states", "ending", "expected"),
    [
        ("Always", [NEW, NEW], False, "Pending"),
        ("Always", [UP, NEW], False, "Running"),
        ("Always", [BAD], False, "Running"),
        ("Always", [CRASHED], False, "Running"),
        ("Always", [GOOD, GOOD], True, "Succeeded"),
        ("Never", [GOOD, UP], False, "Running"),
        ("Never", [GOOD, BAD], False, "Failed"),
        ("Never", [GOOD, GOOD], False, "Succeeded"),
        ("OnFailure", [GOOD, BAD], False, "Running"),
        ("OnFailure", [GOOD, GOOD], False, "Succeeded"),
    ],
)
def test_phase_follows_from_the_containers(
    policy: str, states: list[status.State], ending: bool, expected: str
) -> None:
    assert status.phase(policy, True, [], states, ending) == expected


@pytest.mark.parametrize(
    ("policy", "init", "expected"),
    [
        ("Never", [BAD], "Failed"),
        ("Always", [BAD], "Pending"),
        ("Never", [GOOD, NEW], "Pending"),
    ],
)
def test_pod_whose_init_container_failed(
    policy: str, init: list[status.State], expected: str
) -> None:
    assert status.phase(policy, False, init, [NEW], False) == expected


def test_unchanged_condition_keeps_its_time() -> None:
    old = {"Ready": {"status": "True", "lastTransitionTime": "then"}}
    kept = status.with_times({"Ready": {"status": "True"}}, old)
    changed = status.with_times({"Ready": {"status": "False"}}, old)
    assert kept["Ready"]["lastTransitionTime"] == "then"
    assert changed["Ready"]["lastTransitionTime"] != "then"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)$(B)", "1$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(A", "$(A"),
        ("cost: 5$", "cost: 5$"),
    ],
)
def test_references_expand_as_the_api_says(text: str, expected: str) -> None:
    assert plan.expand(text, {"A": "1"}) == expected


@pytest.mark.parametrize(
    "reference",
    ["agent", "agent:1", "registry:5000/team/agent:1", "r/agent@sha256:00", "r/agent:1@sha256:00"],
)
def test_image_name_is_without_registry_and_tag(reference: str) -> None:
    assert plan.image_name(reference) == "agent"


def pod_of(shared: plan.Json, own: plan.Json) -> tuple[plan.Json, plan.Json]:
    return {"spec": {"securityContext": shared}}, {"securityContext": own}


def test_container_overrides_the_pods_user() -> None:
    user = plan.user(*pod_of({"runAsUser": 1, "runAsGroup": 2, "fsGroup": 3}, {"runAsUser": 4}))
    assert (user.uid, user.gid, user.groups) == (4, 2, (3,))


def test_root_is_refused_where_the_pod_must_not_be_root() -> None:
    with pytest.raises(plan.PlanError, match="must not run as root"):
        plan.user(*pod_of({"runAsNonRoot": True, "runAsUser": 0}, {}))


def test_subpath_must_stay_in_its_volume() -> None:
    mount = {"name": "v", "mountPath": "/x", "subPath": "a/../../b"}
    with pytest.raises(plan.PlanError, match="leaves its volume"):
        plan.mounts({"volumeMounts": [mount]}, {"v": Path("/s")}, Path("/e"))


def test_outer_mounts_come_before_inner_ones() -> None:
    entries = [{"name": "v", "mountPath": path} for path in ("/a/b/c", "/a", "/a/b")]
    made = plan.mounts({"volumeMounts": entries}, {"v": Path("/s")}, Path("/e"))
    targets = [entry["target"] for entry in made if entry["source"] == "/s"]
    assert targets == ["/a", "/a/b", "/a/b/c"]


def test_dropping_all_capabilities_leaves_the_added_ones() -> None:
    assert identity.kept(["NET_BIND_SERVICE"], ["ALL"]) == {"NET_BIND_SERVICE"}
    assert "SYS_ADMIN" not in identity.kept([], [])


def test_link_of_the_image_is_followed_inside_the_image() -> None:
    assert through_links("/var/run/secrets/x") == "/run/secrets/x"
    assert through_links("/var/running") == "/var/running"
