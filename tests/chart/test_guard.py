"""What is refused about opting in, and that the sentence says what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from chart.conftest import EFFECT_S, FABRIC, OTHER, PLAIN, TEAM, dry
from chart.objects import As, Object, Refused, annotated, container, fabric, pod


def volume(**csi: Any) -> Object:
    return {"name": "epfabric", "csi": {"driver": "csi.epfabric.io", **csi}}


def mounted(where: str, name: str) -> Object:
    return container("main", volumeMounts=[{"name": name, "mountPath": where}])


WRITTEN = {"fabric": FABRIC, "group": "other-job", "owner": ""}
EMPTY_DIR = {"name": "epfabric", "emptyDir": {}}
CASES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "misspelt fabric": (
        TEAM,
        {"annotations": annotated("chart-meo")},
        ["chart-meo", TEAM, "misspelt", "kubectl get epfabrics"],
    ),
    "empty fabric": (TEAM, {"annotations": annotated("")}, ["misspelt"]),
    "fabric with a newline": (TEAM, {"annotations": annotated("moe\n")}, ["misspelt"]),
    "very long fabric": (TEAM, {"annotations": annotated("x" * 5000)}, ["misspelt", "xxx..."]),
    "namespace may not opt in": (
        OTHER,
        {"annotations": annotated(FABRIC)},
        [FABRIC, OTHER, "may not opt in", "namespaceSelector"],
    ),
    "volume by hand": (
        PLAIN,
        {"volumes": [volume(volumeAttributes=WRITTEN)]},
        ["written by hand", "annotate the pod"],
    ),
    "volume by hand where opting in is not allowed": (
        OTHER,
        {"annotations": annotated(FABRIC), "volumes": [volume(volumeAttributes=WRITTEN)]},
        [],  # two policies refuse it, with a sentence each
    ),
    "volume by hand under another name beside ours": (
        PLAIN,
        {
            "annotations": annotated(FABRIC),
            "volumes": [{**volume(volumeAttributes=WRITTEN), "name": "mine"}],
        },
        ["written by hand"],
    ),
    "attributes that we do not know": (
        PLAIN,
        {"annotations": annotated(FABRIC), "volumes": [volume(volumeAttributes={"x": "y"})]},
        ["written by hand"],
    ),
    "a secret for the driver": (
        PLAIN,
        {"annotations": annotated(FABRIC), "volumes": [volume(nodePublishSecretRef={"name": "s"})]},
        ["written by hand"],
    ),
    "another volume of our name": (
        PLAIN,
        {"annotations": annotated(FABRIC), "volumes": [EMPTY_DIR]},
        ["volume named epfabric", "rename"],
    ),
    "another mount at our path": (
        PLAIN,
        {
            "annotations": annotated(FABRIC),
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [mounted("/var/run/epfabric", "data")],
        },
        ["/var/run/epfabric", "rename"],
    ),
    "another fabric in the node selector": (
        PLAIN,
        {"annotations": annotated(FABRIC), "nodeSelector": {"epfabric.io/fabric": "other"}},
        [FABRIC, "other", "nodeSelector"],
    ),
    "group without fabric": (
        PLAIN,
        {"annotations": {"epfabric.io/group": "g"}},
        ["no effect without epfabric.io/fabric"],
    ),
    **{
        f"group {name}": (
            PLAIN,
            {"annotations": annotated(FABRIC, group)},
            ["DNS label", "63", "epfabric.io/group"],
        )
        for name, group in {
            "with capitals": "Job",
            "with a dot": "a.b",
            "with a slash": "a/b",
            "that begins with a dash": "-a",
            "that ends with a dash": "a-",
            "of 64 characters": "a" * 64,
            "of 5000 characters": "a" * 5000,
            "that is empty": "",
            "with a newline": "a\n",
        }.items()
    },
}


@pytest.mark.parametrize("case", CASES)
def test_refused_with_a_sentence_that_says_what_to_do(installed: As, case: str) -> None:
    where, options, says = CASES[case]
    with pytest.raises(Refused) as refusal:
        dry(installed, pod("refused", where, **options))
    text = str(refusal.value)
    assert "epfabric-guard" in text
    assert [part for part in says if part not in text] == [], text
    assert len(text) < 1200


def test_a_pods_own_hand_written_volume_equal_to_ours_gains_nothing(installed: As) -> None:
    """The same attributes that admission would write: nothing is refused, nothing gained."""
    right = {"fabric": FABRIC, "group": "", "owner": ""}
    forged = volume(readOnly=True, volumeAttributes={**right, "group": "someone-elses"})
    for written in (volume(readOnly=True, volumeAttributes=right), forged):
        stored = dry(
            installed, pod("same", PLAIN, annotations=annotated(FABRIC), volumes=[written])
        )
        assert stored["spec"]["volumes"] == [volume(readOnly=True, volumeAttributes=right)]


@pytest.mark.parametrize("where", [OTHER, "default"])
def test_the_exact_volume_by_hand_opens_no_foreign_namespace(installed: As, where: str) -> None:
    """Everything as admission would have written it, were the namespace selected."""
    right = {"fabric": FABRIC, "group": "", "owner": ""}
    forged = pod(
        "forged",
        where,
        annotations=annotated(FABRIC),
        volumes=[volume(readOnly=True, volumeAttributes=right)],
        nodeSelector={"epfabric.io/fabric": FABRIC},
    )
    with pytest.raises(Refused, match=f"namespace {where} may not use the EPFabric {FABRIC}"):
        dry(installed, forged)


@pytest.mark.parametrize(
    ("term", "admitted"),
    [
        ({"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "c"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"team": "b"}}, False),
        ({}, True),
    ],
    ids=str,
)
def test_selectors_of_fabrics_mean_for_the_guard_what_they_mean_for_bindings(
    installed: As, term: Object, admitted: bool
) -> None:
    """Without the fabric's binding, so that the guard alone decides on the volume by hand."""
    name = "chart-selector"
    right = {"fabric": name, "group": "", "owner": ""}
    forged = pod(
        "forged",
        TEAM,
        annotations=annotated(name),
        volumes=[volume(readOnly=True, volumeAttributes=right)],
        nodeSelector={"epfabric.io/fabric": name},
    )
    installed.create(fabric(name, term))
    try:
        assert settles(lambda: allowed(installed, forged), admitted)
    finally:
        installed.delete("epfabrics", name)


def allowed(who: As, made: Object) -> bool:
    try:
        dry(who, made)
    except Refused as refusal:
        if "may not use" not in str(refusal):
            raise
        return False
    return True


def settles(look: Callable[[], bool], wanted: bool) -> bool:
    """Whether the answer is the wanted one, thrice in a row, before the time is over."""
    end = time.monotonic() + EFFECT_S
    seen = 0
    while seen < 3 and time.monotonic() < end:
        seen = seen + 1 if look() == wanted else 0
        time.sleep(0.3)
    return seen == 3


@pytest.mark.parametrize("key", ["epfabric.io/fabric", "epfabric.io/group"])
def test_annotations_of_a_made_pod_do_not_change_silently(installed: As, key: str) -> None:
    installed.create(pod("made", PLAIN))
    try:
        with pytest.raises(Refused, match="create the pod again"):
            installed.run("annotate", "pod", "made", "-n", PLAIN, f"{key}={FABRIC}")
    finally:
        installed.delete("pod", "made", PLAIN)


def test_no_expression_of_any_policy_has_a_type_error(installed: As) -> None:
    names = installed.run("get", "validatingadmissionpolicies", "-o", "name").split()
    ours = [name for name in names if "epfabric" in name]
    assert len(ours) == 11
    for name in ours:
        installed.run("wait", name, "--for=jsonpath={.status.typeChecking}", "--timeout=60s")
        warned = installed.run("get", name, "-o", "jsonpath={.status.typeChecking}")
        assert warned in ("", "{}"), f"{name}: {warned}"
