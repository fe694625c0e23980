"""What an agent's pod gets so that it may set NICs, and only then."""

from __future__ import annotations

from typing import Any

import pytest
from epfabric_operator.daemonset import STOP_WITH_NICS_S, daemonsets
from unit.operator.builders import fabric


@pytest.mark.parametrize("mode", ["Observe", "Configure"])
def test_only_agents_that_configure_nics_may(mode: str) -> None:
    only_tcp = {"type": "libfabric", "allowTcp": True}  # else it is privileged anyway
    spec = fabric(transport=only_tcp, nics={"mode": mode, "mtu": 9000})
    (made,) = daemonsets(spec, "i", 0, "n")
    pod: dict[str, Any] = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    may = "NET_ADMIN" in container["securityContext"]["capabilities"].get("add", [])
    sees = {m["mountPath"] for m in container["volumeMounts"]} & {"/sys"}
    paths = {v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v} & {"/sys"}
    args = [int(a.partition("=")[2]) for a in container["args"] if a.startswith("--stop-s=")]
    assert args == ([STOP_WITH_NICS_S] if mode == "Configure" else [])
    assert pod["terminationGracePeriodSeconds"] == (args[0] if args else 20) + 10
    assert (may, bool(sees), bool(paths)) == ((mode == "Configure"),) * 3
