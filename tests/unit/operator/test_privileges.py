"""An agent has what its fabric's transport needs, and no more."""

from __future__ import annotations

from typing import Any

import pytest
from epfabric_crds import EPFabric
from epfabric_operator.daemonset import daemonsets
from epfabric_operator.privileges import CDI_ANNOTATION

NIC = "rdma.example/nic=all"
DRIVES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"type": "auto", "allowTcp": True}, True),
    ({"type": "verbs"}, True),
    ({"type": "libfabric"}, True),
    ({"type": "libfabric", "allowTcp": True}, False),
    ({"type": "loopback"}, False),
]


def template(**spec: Any) -> dict[str, Any]:
    body = {
        "apiVersion": "epfabric.io/v1alpha1",
        "kind": "EPFabric",
        "metadata": {"name": "moe"},
        "spec": {"nodeSelector": {}, "namespaceSelector": {}, **spec},
    }
    (made,) = daemonsets(EPFabric.from_dict(body), "agent:1", 7470, "somewhere")
    found: dict[str, Any] = made["spec"]["template"]
    return found


def context(made: dict[str, Any]) -> dict[str, Any]:
    (container,) = made["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "procMount" not in container["securityContext"]
    found: dict[str, Any] = container["securityContext"]
    return found


@pytest.mark.parametrize(("transport", "drives"), DRIVES)
def test_only_who_may_drive_a_nic_is_privileged(transport: dict[str, Any], drives: bool) -> None:
    made = template(transport=transport)
    found = context(made)
    assert bool(found.get("privileged")) is drives
    if not drives:
        assert found["capabilities"] == {"drop": ["ALL"]}
        assert found["allowPrivilegeEscalation"] is False
        assert found["seccompProfile"] == {"type": "RuntimeDefault"}
        assert found["seLinuxOptions"] == {"type": "spc_t"}
    assert "annotations" not in made["metadata"]


@pytest.mark.parametrize(("transport", "drives"), DRIVES)
def test_devices_by_cdi_need_no_privileged_agent(transport: dict[str, Any], drives: bool) -> None:
    made = template(transport=transport, agent={"cdiDevices": [NIC, "rdma.example/nic=1"]})
    found = context(made)
    assert "privileged" not in found
    assert found["capabilities"].get("add", []) == (["IPC_LOCK"] if drives else [])
    wanted = {CDI_ANNOTATION: f"{NIC},rdma.example/nic=1"} if drives else None
    assert made["metadata"].get("annotations") == wanted


def test_only_an_agent_that_configures_nics_may_change_links() -> None:
    made = template(transport={"type": "loopback"}, nics={"mode": "Configure", "mtu": 9000})
    assert context(made)["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}


@pytest.mark.parametrize(("transport", "drives"), DRIVES)
def test_no_agent_mounts_anything_back_into_the_node(
    transport: dict[str, Any], drives: bool
) -> None:
    pool = {"name": "a", "hugepages": {"amount": "64Mi"}}
    (container,) = template(transport=transport, agent={"pools": [pool]})["spec"]["containers"]
    assert [m for m in container["volumeMounts"] if "mountPropagation" in m] == []
