"""What the webhook changes of a pod: as the policy epfabric-inject does; pure, for webhook.py.

The policy merges an apply configuration into the pod. So does this, with the API server's rules for
lists whose entries have a key (structured-merge-diff), so that both make the same pod. A test
compares them, byte for byte.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from epfabric_crds import names

Object = dict[str, Any]
LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
MOST_KIND = 26
MOST_NAME = 63
KEYS = {
    "volumes": "name",
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumeMounts": "mountPath",
}


def patch(pod: Mapping[str, Any], fabric: str) -> list[Object]:
    """JSON patch that gives the pod what it needs of `fabric`; empty where something is in the way.

    The caller has checked that the fabric takes pods of that namespace.
    """
    spec = pod["spec"]
    if in_the_way(spec):
        return []
    wanted = merged(spec, _configuration(pod, fabric))
    wanted.setdefault("nodeSelector", {})
    wanted["nodeSelector"] = {names.FABRIC_LABEL: fabric, **wanted["nodeSelector"]}
    return [
        {"op": "add", "path": f"/spec/{field}", "value": value}
        for field, value in wanted.items()
        if spec.get(field) != value
    ]


def in_the_way(spec: Mapping[str, Any]) -> bool:
    """Whether something of the pod's own has the volume's name or lies at the mount path."""
    volumes = [v for v in spec.get("volumes") or () if v["name"] == names.POD_VOLUME]
    if any((v.get("csi") or {}).get("driver") != names.CSI_DRIVER for v in volumes):
        return True
    return any(
        mount["mountPath"] == names.POD_DIRECTORY and mount["name"] != names.POD_VOLUME
        for container in [*spec["containers"], *(spec.get("initContainers") or ())]
        for mount in container.get("volumeMounts") or ()
    )


def _configuration(pod: Mapping[str, Any], fabric: str) -> Object:
    attributes = {"fabric": fabric, "group": group_of(pod), "owner": owner_of(pod)}

    def container(of: Mapping[str, Any]) -> Object:
        mount = {"name": names.POD_VOLUME, "mountPath": names.POD_DIRECTORY, "readOnly": True}
        return {
            "name": of["name"],
            "volumeMounts": [mount],
            "env": [
                {"name": "EPFABRIC_SOCKET", "value": names.POD_SOCKET},
                {"name": "EPFABRIC_FABRIC", "value": fabric},
            ],
        }

    csi = {"driver": names.CSI_DRIVER, "readOnly": True, "volumeAttributes": attributes}
    made: Object = {
        "volumes": [{"name": names.POD_VOLUME, "csi": csi}],
        "containers": [container(c) for c in pod["spec"]["containers"]],
    }
    if pod["spec"].get("initContainers"):
        made["initContainers"] = [container(c) for c in pod["spec"]["initContainers"]]
    return made


def owner_of(pod: Mapping[str, Any]) -> str:
    """`apiVersion kind name uid` of the pod's controller, or nothing."""
    owner = _controller(pod)
    return f"{owner['apiVersion']} {owner['kind']} {owner['name']} {owner['uid']}" if owner else ""


def group_of(pod: Mapping[str, Any]) -> str:
    """The annotation; else the JobSet, LeaderWorkerSet's group, MPIJob; else the controller."""
    metadata = pod["metadata"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    if names.GROUP_ANNOTATION in annotations:
        return str(annotations[names.GROUP_ANNOTATION])
    if "jobset.sigs.k8s.io/jobset-uid" in labels:
        return f"jobset-{labels['jobset.sigs.k8s.io/jobset-uid']}"
    lws, key = _lws_group(labels), "leaderworkerset.sigs.k8s.io/group-key"
    if len(lws) > MOST_NAME and key in labels:
        return f"lws-{labels[key]}"
    if lws:
        return lws
    kubeflow, job = "training.kubeflow.org/operator-name", "training.kubeflow.org/job-name"
    if labels.get(kubeflow) == "mpi-operator" and job in labels:
        return f"mpijob-{labels[job]}"
    owner = _controller(pod)
    return f"{owner['kind'][:MOST_KIND].translate(LOWER)}-{owner['uid']}" if owner else ""


def _lws_group(labels: Mapping[str, str]) -> str:
    name, index = (f"leaderworkerset.sigs.k8s.io/{what}" for what in ("name", "group-index"))
    return f"lws-{labels[name]}-{labels[index]}" if name in labels and index in labels else ""


def _controller(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    owners: Sequence[Mapping[str, Any]] = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def merged(old: Any, new: Any, field: str = "") -> Any:
    """`new` applied on `old`, as for a field of this name."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        both = {**old, **new}
        return {
            key: merged(old[key], new[key], key) if key in old and key in new else value
            for key, value in both.items()
        }
    if isinstance(old, list) and isinstance(new, list) and field in KEYS:
        return _merged_list(old, new, KEYS[field])
    return new


def _merged_list(old: list[Object], new: list[Object], key: str) -> list[Object]:
    """Entries of `new` keep their order, those of `old` alone stand where they stood among them."""
    theirs: dict[str, Object | None] = {}
    for entry in old:  # one that stands twice is nobody's
        theirs[entry[key]] = None if entry[key] in theirs else entry
    ours = {entry[key]: entry for entry in new}
    shared = [entry[key] for entry in new if entry[key] in theirs]
    out: list[Object] = []
    done: set[str] = set()

    def take(entry: Object) -> None:
        before = theirs.get(entry[key])
        out.append(entry if before is None else merged(before, entry))
        done.add(entry[key])
        if shared and shared[0] == entry[key]:
            del shared[0]

    i = j = 0
    while i < len(old) or j < len(new):
        if i < len(old) and j < len(new):
            name = old[i][key]
            if name == new[j][key]:
                take(new[j])
                i, j = i + 1, j + 1
                continue
            if name in ours and shared and shared[0] != name:
                i += 1
                continue
        if i < len(old):
            name = old[i][key]
            if name not in ours:
                out.append(old[i])
                i += 1
                continue
            if name in done:
                i += 1
        if j < len(new):
            take(new[j])
            j += 1
    return out
