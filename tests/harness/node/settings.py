"""Settings of a node's containerd, network plugins and kubelet; pure, for `harness.node.node`.

Some say how this harness differs from a machine of its own: no systemd, maybe cgroup v1, no right
to lower an OOM score, no service network but the API server's address.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
BOOT_ID = "proc/sys/kernel/random/boot_id"


def containerd(plugins: Path, networks: Path, sandbox: str, container: Path) -> str:
    """The configuration of containerd, TOML; `networks` holds the list of `network`."""
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{sandbox}"

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
disable_apparmor = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{container}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{plugins}"]
conf_dir = "{networks}"
"""


def container(plain: Mapping[str, Any], boot_id: Path) -> dict[str, Any]:
    """What each container's specification begins with: `plain`, and the boot id of its node.

    A container has a /proc of its own, in which runc lets no mount be asked for.
    """
    into = r"$(sed -n 's/.*\"bundle\":\"\([^\"]*\)\".*/\1/p')"
    script = f'exec mount --no-mtab --bind {boot_id} "{into}/rootfs/{BOOT_ID}"'
    hook = {"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/usr/bin:/bin"]}
    return {**plain, "hooks": {"createContainer": [hook]}}


def network(pods: str) -> dict[str, Any]:
    """A bridge of the node for its pods, which get addresses of the range `pods`."""
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isDefaultGateway": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]]},
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def kubelet(cgroup: str, address: str, authority: Path) -> dict[str, Any]:
    """The kubelet's configuration; `authority` signs what the API server shows to it."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "makeIPTablesUtilChains": False,
        "imageGCHighThresholdPercent": 100,  # no image could be pulled again
        "serializeImagePulls": False,
        "syncFrequency": "5s",
        "nodeStatusUpdateFrequency": "5s",
        "volumeStatsAggPeriod": "5s",  # by which pods are evicted that outgrow a volume
        "healthzPort": 0,
        "readOnlyPort": 0,
    }


def kubeconfig(url: str, certificate: bytes, token: str) -> dict[str, Any]:
    """How a node's kubelet reaches the API server."""
    authority = base64.b64encode(certificate).decode()
    cluster = {"server": url, "certificate-authority-data": authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "node",
        "clusters": [{"name": "site", "cluster": cluster}],
        "users": [{"name": "kubelet", "user": {"token": token}}],
        "contexts": [{"name": "node", "context": {"cluster": "site", "user": "kubelet"}}],
    }
