"""What an agent's container may do, from what its fabric allows; pure, used by daemonset.py.

docs/security.md argues each entry. Whoever needs another one adds it here and there.
"""

from __future__ import annotations

from typing import Any

from epfabric_crds.fabric import EPFabricSpec
from epfabric_crds.settings import Transport

CDI_ANNOTATION = "cdi.k8s.io/epfabric"
LINKS = "NET_ADMIN"  # MTU and flow control of links are set by netlink
PINNING = "IPC_LOCK"  # RDMA NICs pin what is registered with them, beyond any RLIMIT_MEMLOCK


def drives_nics(transport: Transport) -> bool:
    """Whether an RDMA NIC's devices may be opened: by verbs, or by libfabric for EFA."""
    only_tcp = transport.type == "libfabric" and transport.allow_tcp
    return transport.type != "loopback" and not only_tcp


def security_context(spec: EPFabricSpec) -> dict[str, Any]:
    """Of the agent's container. Root, since its sockets lie in folders that only root may write."""
    nics = drives_nics(spec.transport)
    root: dict[str, Any] = {"runAsUser": 0, "readOnlyRootFilesystem": True}
    if nics and not spec.agent.cdi_devices:
        return {**root, "privileged": True}  # the one other way to the NICs' devices
    add = [PINNING] * nics + [LINKS] * (spec.nics.mode == "Configure")
    return {
        **root,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], **({"add": add} if add else {})},
        "seccompProfile": {"type": "RuntimeDefault"},
        # Only this domain may take connections of containers with other labels; see security.md.
        "seLinuxOptions": {"type": "spc_t"},
    }


def pod_annotations(spec: EPFabricSpec) -> dict[str, str]:
    """Of the agent's pod: what the container runtime has to give it by CDI."""
    if not spec.agent.cdi_devices or not drives_nics(spec.transport):
        return {}
    return {CDI_ANNOTATION: ",".join(spec.agent.cdi_devices)}
