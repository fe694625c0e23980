"""What admission makes of pods that opt in, and that it leaves all others alone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from chart.conftest import (
    EFFECT_S,
    FABRIC,
    PLAIN,
    TEAM,
    TEAM_A,
    dry,
    stored_spec,
    wait_until_effective,
)
from chart.objects import (
    As,
    Object,
    Refused,
    annotated,
    attributes,
    binding,
    container,
    fabric,
    ours,
    pod,
)

MOUNT = {"name": "epfabric", "mountPath": "/var/run/epfabric", "readOnly": True}
ENV = [
    {"name": "EPFABRIC_SOCKET", "value": "/var/run/epfabric/agent.sock"},
    {"name": "EPFABRIC_FABRIC", "value": FABRIC},
]
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "11-22"}
LONG_KIND = {**JOB, "kind": "AVeryLongKindOfControllerThatSomebodyMade"}
JOBSET = {"jobset.sigs.k8s.io/jobset-uid": "aa-bb"}
LWS = {
    "leaderworkerset.sigs.k8s.io/name": "llm",
    "leaderworkerset.sigs.k8s.io/group-index": "3",
    "leaderworkerset.sigs.k8s.io/group-key": "0123456789abcdef0123456789abcdef01234567",
}
LWS_LONG = {**LWS, "leaderworkerset.sigs.k8s.io/name": "n" * 60}
LWS_LEADER_TOO_EARLY = {"leaderworkerset.sigs.k8s.io/name": "llm"}
MPI = {
    "training.kubeflow.org/operator-name": "mpi-operator",
    "training.kubeflow.org/job-name": "pi",
}


def test_a_pod_without_the_annotation_is_stored_byte_for_byte_as_without_the_chart(
    installed: As, before: Object
) -> None:
    after = stored_spec(installed, "after")
    assert json.dumps(after["spec"]) == json.dumps(before["spec"])
    for part in ("labels", "annotations"):
        assert after["metadata"][part] == before["metadata"][part]


def test_every_container_of_an_annotated_pod_gets_mount_and_environment(installed: As) -> None:
    made = pod(
        "all",
        TEAM,
        annotations=annotated(FABRIC),
        containers=[container("a"), container("b")],
        initContainers=[container("i"), container("side", restartPolicy="Always")],
    )
    stored = dry(installed, made)
    assert ours(stored) == {
        "name": "epfabric",
        "csi": {
            "driver": "csi.epfabric.io",
            "readOnly": True,
            "volumeAttributes": {"fabric": FABRIC, "group": "", "owner": ""},
        },
    }
    assert stored["spec"]["nodeSelector"] == {"epfabric.io/fabric": FABRIC}
    every = stored["spec"]["containers"] + stored["spec"]["initContainers"]
    assert [one["name"] for one in every] == ["a", "b", "i", "side"]
    for one in every:
        assert one["volumeMounts"] == [MOUNT]
        assert one["env"] == ENV


def test_a_pod_without_init_containers_gets_none(installed: As) -> None:
    stored = dry(installed, pod("bare", TEAM, annotations=annotated(FABRIC)))
    assert "initContainers" not in stored["spec"]


def test_what_the_pod_has_of_its_own_is_kept(installed: As) -> None:
    own_mount = {"name": "data", "mountPath": "/data"}
    own_env = {"name": "RANK", "value": "3"}
    made = pod(
        "own",
        TEAM,
        annotations=annotated(FABRIC),
        nodeSelector={"zone": "z"},
        volumes=[{"name": "data", "emptyDir": {"sizeLimit": "1Mi"}}],
        containers=[
            container("main", env=[own_env], volumeMounts=[own_mount], args=["x"], tty=True)
        ],
        tolerations=[{"key": "k", "operator": "Exists"}],
    )
    stored = dry(installed, made)["spec"]
    assert stored["nodeSelector"] == {"zone": "z", "epfabric.io/fabric": FABRIC}
    assert {"name": "data", "emptyDir": {"sizeLimit": "1Mi"}} in stored["volumes"]
    (main,) = stored["containers"]
    assert own_mount in main["volumeMounts"]
    assert MOUNT in main["volumeMounts"]
    assert [own_env, *ENV] == sorted(main["env"], key=lambda one: [own_env, *ENV].index(one))
    assert main["args"] == ["x"]
    assert {"key": "k", "operator": "Exists"} in stored["tolerations"]


@pytest.mark.parametrize(
    ("options", "group", "owner"),
    [
        ({}, "", ""),
        ({"owner": JOB}, "job-11-22", "batch/v1 Job train 11-22"),
        (
            {"owner": LONG_KIND},
            "averylongkindofcontrollert-11-22",
            f"batch/v1 {LONG_KIND['kind']} train 11-22",
        ),
        ({"labels": JOBSET, "owner": JOB}, "jobset-aa-bb", "batch/v1 Job train 11-22"),
        ({"labels": LWS}, "lws-llm-3", ""),
        ({"labels": LWS_LONG}, f"lws-{LWS['leaderworkerset.sigs.k8s.io/group-key']}", ""),
        ({"labels": LWS_LEADER_TOO_EARLY, "owner": JOB}, "job-11-22", "batch/v1 Job train 11-22"),
        ({"labels": MPI, "owner": JOB}, "mpijob-pi", "batch/v1 Job train 11-22"),
        ({"labels": {"training.kubeflow.org/job-name": "pi"}}, "", ""),
        ({"annotations": annotated(FABRIC, "mine"), "labels": JOBSET}, "mine", ""),
        ({"annotations": annotated(FABRIC, "a" * 63)}, "a" * 63, ""),
    ],
)
def test_the_volume_says_group_and_owner(
    installed: As, options: dict[str, Any], group: str, owner: str
) -> None:
    made = pod("grouped", TEAM, **{"annotations": annotated(FABRIC), **options})
    assert attributes(dry(installed, made)) == {"fabric": FABRIC, "group": group, "owner": owner}


def test_only_the_controlling_owner_counts(installed: As) -> None:
    made = pod("owners", TEAM, annotations=annotated(FABRIC))
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "0"}
    made["metadata"]["ownerReferences"] = [plain, {**JOB, "controller": True}]
    assert attributes(dry(installed, made))["group"] == "job-11-22"


def test_labels_that_come_later_in_admission_still_decide_the_group(installed: As) -> None:
    """As with a LeaderWorkerSet, whose leader is labelled by a later step."""
    late = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": "zz-chart-test-late"},
        "spec": {
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "resourceRules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                    }
                ]
            },
            "matchConditions": [
                {"name": "late", "expression": "object.metadata.name == 'late-leader'"}
            ],
            "mutations": [
                {
                    "patchType": "ApplyConfiguration",
                    "applyConfiguration": {
                        "expression": "Object{metadata: Object.metadata{labels: {"
                        "'leaderworkerset.sigs.k8s.io/group-index': '7'}}}"
                    },
                }
            ],
        },
    }
    bound = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": "zz-chart-test-late"},
        "spec": {"policyName": "zz-chart-test-late"},
    }
    made = pod("late-leader", TEAM, annotations=annotated(FABRIC), labels=LWS_LEADER_TOO_EARLY)
    try:
        installed.create(late)
        installed.create(bound)
        end = time.monotonic() + EFFECT_S
        while (
            "leaderworkerset.sigs.k8s.io/group-index"
            not in (stored := dry(installed, made))["metadata"]["labels"]
        ):
            assert time.monotonic() < end, "the late policy has no effect"
            time.sleep(0.3)
        assert attributes(stored)["group"] == "lws-llm-7"
    finally:
        installed.delete("mutatingadmissionpolicybinding", "zz-chart-test-late")
        installed.delete("mutatingadmissionpolicy", "zz-chart-test-late")


def test_the_pods_of_a_job_in_a_restricted_namespace_are_admitted(installed: As) -> None:
    template = pod("unused", TEAM, annotations=annotated(FABRIC))
    template["metadata"] = {"annotations": annotated(FABRIC)}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "ranks", "namespace": TEAM},
        "spec": {"completions": 2, "parallelism": 2, "completionMode": "Indexed"},
    }
    job["spec"]["template"] = {"metadata": template["metadata"], "spec": template["spec"]}  # type: ignore[index]
    uid = installed.create(job)["metadata"]["uid"]
    end = time.monotonic() + EFFECT_S
    while len(pods := pods_of(installed, "job-name=ranks")) < 2:
        assert time.monotonic() < end, installed.run("describe", "job", "ranks", "-n", TEAM)
        time.sleep(0.3)
    for made in pods:
        assert attributes(made)["group"] == f"job-{uid}"
        assert attributes(made)["owner"] == f"batch/v1 Job ranks {uid}"
        assert made["spec"]["containers"][0]["volumeMounts"] == [MOUNT]
    installed.delete("job", "ranks", TEAM)


def pods_of(who: As, selector: str) -> list[Object]:
    found: list[Object] = json.loads(
        who.run("get", "pods", "-n", TEAM, "-l", selector, "-o", "json")
    )["items"]
    return found


@pytest.mark.parametrize("where", ["kube-system", "epfabric-system", "epfabric-nodes"])
def test_the_systems_own_namespaces_are_left_alone(installed: As, where: str) -> None:
    made = pod("system", where, annotations=annotated(FABRIC))
    stored = dry(installed, made)
    assert ours(stored) is None
    assert "nodeSelector" not in stored["spec"]


def test_a_pod_may_still_change_after_it_was_made(installed: As) -> None:
    installed.create(pod("lively", TEAM, annotations=annotated(FABRIC)))
    changed = {"metadata": {"labels": {"new": "label"}, "annotations": {"other": "note"}}}
    stored = installed.patch("pod", "lively", changed, TEAM)
    assert stored["metadata"]["labels"] == {"new": "label"}
    installed.delete("pod", "lively", TEAM)


def test_a_missing_fabric_disturbs_nobody_and_a_new_one_is_found(installed: As) -> None:
    """Also after the last binding went, as when an only fabric is deleted and made again."""
    installed.delete("mutatingadmissionpolicybinding", f"epfabric-inject-{FABRIC}")
    installed.delete("epfabrics", FABRIC)
    try:
        asks = pod("asks", TEAM, annotations=annotated(FABRIC))
        until(lambda: is_refused(installed, asks), "pods are still injected without a binding")
        dry(installed, pod("without", PLAIN))
        installed.create(binding(FABRIC, TEAM_A))
        dry(installed, pod("without", PLAIN))
        with pytest.raises(Refused, match="takes pods of the namespace"):
            dry(installed, pod("asks", TEAM, annotations=annotated(FABRIC)))
    finally:
        installed.create(fabric(FABRIC, TEAM_A))
        wait_until_effective(installed)


def test_definitions_that_are_missing_disturb_no_pod(installed: As) -> None:
    """The policy refers to a kind; where nobody serves it, other pods must not suffer."""
    policy = installed.get("mutatingadmissionpolicy", "epfabric-inject")
    spec = {**policy["spec"], "paramKind": {"apiVersion": "epfabric.io/v1", "kind": "EPGone"}}
    kind, name = "mutatingadmissionpolicy", "zz-chart-test-gone"
    bound = binding("gone", {"matchLabels": {"kubernetes.io/metadata.name": PLAIN}})
    bound["metadata"]["name"] = bound["spec"]["policyName"] = name
    made = {"apiVersion": policy["apiVersion"], "kind": "MutatingAdmissionPolicy"}
    try:
        # Were it Fail, every pod would be refused: so the API server does look at it.
        installed.create(
            {**made, "metadata": {"name": name}, "spec": {**spec, "failurePolicy": "Fail"}}
        )
        installed.create(bound)
        until(lambda: is_refused(installed, pod("plain", PLAIN)), "the broken policy has no effect")
        installed.patch(kind, name, {"spec": {"failurePolicy": spec["failurePolicy"]}})
        until(
            lambda: not is_refused(installed, pod("plain", PLAIN)),
            "pods without the annotation are refused where the definitions are missing",
        )
    finally:
        installed.delete("mutatingadmissionpolicybinding", name)
        installed.delete(kind, name)


def is_refused(who: As, made: Object) -> bool:
    try:
        dry(who, made)
    except Refused:
        return True
    return False


def until(done: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + EFFECT_S
    while not done():
        assert time.monotonic() < end, otherwise
        time.sleep(0.3)
