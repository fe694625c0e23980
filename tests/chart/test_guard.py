"""What is refused about opting in, and that the sentence says what to do."""

from __future__ import annotations

from typing import Any

import pytest
from chart.conftest import FABRIC, OTHER, PLAIN, TEAM, dry
from chart.objects import As, Object, Refused, annotated, container, pod


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
        ["written by hand"],
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
    assert len(ours) == 6
    for name in ours:
        installed.run("wait", name, "--for=jsonpath={.status.typeChecking}", "--timeout=60s")
        warned = installed.run("get", name, "-o", "jsonpath={.status.typeChecking}")
        assert warned in ("", "{}"), f"{name}: {warned}"
