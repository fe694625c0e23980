"""Runs in the VM: sets NICs that are bonds, VLANs and soft-RoCE devices; prints what came of it.

Each step's report, the MTUs and the RDMA settings afterwards, as one line of JSON; judged by
test_nics.py outside.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from agent.nics.site import NODE_ADDRESS, Site, state
from epfabric_agent.nic.report import NicReport
from epfabric_crds.settings import Nics, NicSelector

CMA = Path("/sys/kernel/config/rdma_cm")
LINKS = ("bond0", "m0", "m1", "bond0.7", "v0")


class Here:
    """The VM's own network, in the place of a namespace."""

    def run(self, work: Any) -> Any:
        return asyncio.run(work())


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def lay_out() -> None:
    for name in ("m0", "m1", "v0"):
        ip("link", "add", name, "type", "veth", "peer", "name", f"{name}p")
        ip("link", "set", f"{name}p", "up")
    ip("link", "set", "bond0", "type", "bond", "mode", "active-backup", "miimon", "100")
    for member in ("m0", "m1"):
        ip("link", "set", member, "master", "bond0")
    ip("link", "set", "bond0", "up")
    ip("link", "add", "link", "bond0", "name", "bond0.7", "type", "vlan", "id", "7")
    ip("link", "set", "bond0.7", "up")
    ip("addr", "add", "10.9.0.1/24", "dev", "v0")
    ip("link", "set", "v0", "up")
    subprocess.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "v0"], check=True)


def mtus() -> dict[str, int]:
    return {n: int(Path(f"/sys/class/net/{n}/mtu").read_text()) for n in LINKS}


def rdma_cm() -> dict[str, str]:
    folder = CMA / "rxe0"
    assert not folder.exists(), "a folder was left in configfs"
    folder.mkdir()
    port = folder / "ports/1"
    found = {name: (port / f"default_roce_{name}").read_text().strip() for name in ("mode", "tos")}
    folder.rmdir()
    return found


def wish(*names: str, **settings: Any) -> Nics:
    return Nics(mode="Configure", selector=NicSelector(names=names), **settings)


def main() -> None:
    lay_out()
    steps: dict[str, Any] = {"before": [mtus(), rdma_cm()]}
    site = Site(Here(), Path(tempfile.mkdtemp()), Path("/"))  # type: ignore[arg-type]
    site.confirm_s = 5.0

    def step(name: str, wanted: Nics, *asked: tuple[str, str]) -> None:
        report: NicReport = site.turn(wanted)
        told = {f"{nic} {setting}": state(report, nic, setting) for nic, setting in asked}
        steps[name] = [mtus(), rdma_cm(), told]

    step(
        "bond",
        wish("bond0", "bond0.7", "m0", mtu=4200),
        *(("bond0", "mtu"), ("bond0.7", "mtu"), ("m0", "mtu")),
    )
    step("bond restored", Nics())
    rxe = wish("rxe0", mtu=4200, tos=96, roce_mode="v2", pfc="0,0,0,1,0,0,0,0")
    step("rxe", rxe, ("v0", "mtu"), ("v0", "tos"), ("v0", "roceMode"), ("v0", "pfc"))
    step("rxe refuses", wish("rxe0", roce_mode="v1", mtu=4200, tos=96), ("v0", "roceMode"))
    step("rxe restored", Nics())
    ip("addr", "add", f"{NODE_ADDRESS}/24", "dev", "bond0.7")
    step(
        "node on the VLAN",
        wish("bond0", "m0", "m1", "v0", mtu=1400),
        *(("bond0", "mtu"), ("m0", "mtu"), ("m1", "mtu"), ("v0", "mtu")),
    )
    print(json.dumps(steps))


if __name__ == "__main__":
    main()
