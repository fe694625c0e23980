"""NICs of real nodes: what is found, what is refused, and that writing and undoing are exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from epfabric_agent.nic.change import Changer
from epfabric_agent.nic.duty import Happening, NicDuty, Surroundings
from epfabric_agent.nic.facts import Node, Reading
from epfabric_agent.nic.journal import Journal, Memory
from epfabric_agent.nic.plan import Plan, Situation, plan
from epfabric_crds.settings import Nics, NicSelector
from unit.nic.clock import StepClock, alone
from unit.nic.recorded import Recorded

ALL = Nics(mode="Configure", mtu=9000, roce_mode="v2", tos=96, ecn=True, pfc="0,0,0,1,0,0,0,0")
# What dcb netlink would say; no driver here has it.
BRIDGING = {"pfc": Reading("0,0,0,0,0,0,0,0"), "trust": Reading("pcp")}


def node_of(recorded: Recorded, wanted: Nics, bridging: bool = False) -> Node:
    found = recorded.knobs.of(recorded.network, wanted, ())
    if bridging:
        nics = (
            replace(n, readings={**n.readings, **BRIDGING}) if n.index else n for n in found.nics
        )
        found = replace(found, nics=tuple(nics))
    return found


def planned(recorded: Recorded, wanted: Nics, bridging: bool = False) -> Plan:
    return plan(wanted, node_of(recorded, wanted, bridging), Memory(), Situation())


def changes(found: Plan) -> set[tuple[str, str, str, str]]:
    return {(c.nic, c.setting, c.old, c.new) for c in found.changes}


def states(found: Plan, setting: str) -> dict[str, str]:
    return {f.nic: f.state for f in found.findings if f.setting == setting}


def test_mlx5_rails_are_configured_and_the_management_bond_is_not(tmp_path: Path) -> None:
    recorded = Recorded("mlx5", tmp_path)
    wanted = replace(ALL, selector=NicSelector(drivers=("mlx5_core",)))
    found = planned(recorded, wanted, bridging=True)
    assert set(found.nics) == {"eno1np0", "eno2np1", "enp26s0np0", "enp60s0np0", "enp60s0v0"}
    refused = {f.nic: f.reason for f in found.findings if f.state == "Refused"}
    assert set(refused) == {"eno1np0", "eno2np1"}
    # The node's address is on a VLAN of the bond that both are members of.
    assert refused["eno2np1"].startswith(
        "bond0.100 carries the node's address 192.0.2.17, and hangs together with it"
    )
    assert changes(found) >= {
        ("enp26s0np0", "mtu", "1500", "9000"),
        ("enp26s0np0", "tos", "0/0", "96/96"),
        ("enp60s0np0", "roceMode", "v1", "v2"),
        ("enp60s0np0", "tos", "106/106", "96/96"),
        ("enp60s0np0", "ecn", "00000000/00010000", "00010000/00010000"),
        ("enp60s0np0", "pfc", "0,0,0,0,0,0,0,0", "0,0,0,1,0,0,0,0"),
    }
    assert states(found, "ecn")["enp26s0np0"] == "AsWanted"
    assert states(found, "ecn")["enp60s0v0"] == "Unsupported"


def test_a_function_is_refused_where_its_virtual_function_carries_the_node(tmp_path: Path) -> None:
    recorded = Recorded("mlx5", tmp_path)
    network = recorded.network
    moved = {8: replace(network.links[8], addresses=("192.0.2.17",)), 7: network.links[7]}
    network = replace(network, links={**network.links, **moved}, routes=())
    wanted = Nics(mode="Configure", mtu=9000)
    found = plan(wanted, recorded.knobs.of(network, wanted, ()), Memory(), Situation())
    assert states(found, "mtu")["enp60s0np0"] == "Refused"
    assert states(found, "mtu")["enp26s0np0"] == "Waiting"


def test_bnxt_ports_have_a_cma_and_no_file_for_ecn(tmp_path: Path) -> None:
    recorded = Recorded("bnxt", tmp_path)
    found = planned(recorded, replace(ALL, selector=NicSelector(drivers=("bnxt_en",))))
    assert changes(found) == {
        ("ens1f0np0", "mtu", "1500", "9000"),
        ("ens1f0np0", "roceMode", "v1", "v2"),
        ("ens1f0np0", "tos", "0", "96"),
        ("ens1f1np1", "tos", "104", "96"),
    }
    assert set(states(found, "ecn").values()) == {"Unsupported"}
    assert set(states(found, "pfc").values()) == {"Unsupported"}


def test_irdma_has_a_bit_for_ecn_and_the_port_with_the_node_stays(tmp_path: Path) -> None:
    found = planned(Recorded("irdma", tmp_path), ALL)
    assert {c[0] for c in changes(found)} == {"ens2f1"}
    assert ("ens2f1", "ecn", "0", "1") in changes(found)
    assert states(found, "mtu")["ens2f0"] == "Refused"


def test_efa_devices_have_no_interface_and_the_only_nic_carries_the_node(tmp_path: Path) -> None:
    found = planned(Recorded("efa", tmp_path), ALL)
    assert found.nics == ("enp39s0", "rdmap79s0", "rdmap80s0")
    assert not found.changes
    assert states(found, "mtu") == {
        "enp39s0": "Refused",
        "rdmap79s0": "Unsupported",
        "rdmap80s0": "Unsupported",
    }


def test_a_nic_below_open_vswitch_carries_the_node(tmp_path: Path) -> None:
    found = planned(Recorded("ovs", tmp_path), ALL)
    assert {c.nic for c in found.changes} == {"ens3f0np0"}
    refused = {f.nic: f.reason for f in found.findings if f.state == "Refused"}
    assert set(refused) == {"eno1np0", "eno2np1"}
    assert refused["eno2np1"].startswith("br-ex carries")
    assert refused["eno2np1"].endswith(
        ", and hangs together with it: set it up outside of the fabric"
    )


def test_files_for_ecn_that_cannot_be_read_have_no_value(tmp_path: Path) -> None:
    recorded = Recorded("mlx5", tmp_path)
    for content in ("", "2\n", "10\n"):
        path = tmp_path / "sys/class/net/enp60s0np0/ecn/roce_rp/enable/5"
        path.write_text(content)
        found = planned(recorded, ALL)
        assert states(found, "ecn")["enp60s0np0"] == "Unsupported"
        assert states(found, "ecn")["enp26s0np0"] == "AsWanted"


@pytest.mark.parametrize("name", ["mlx5", "bnxt", "irdma"])
async def test_what_was_written_to_files_is_restored_bit_by_bit(tmp_path: Path, name: str) -> None:
    recorded = Recorded(name, tmp_path / "root")
    before = snapshot(tmp_path / "root")
    wanted = Nics(mode="Configure", roce_mode="v2", tos=96, ecn=True)
    told: list[Happening] = []
    duty = duty_of(recorded, tmp_path, told)
    report = await duty.turn(wanted)
    assert snapshot(tmp_path / "root") != before
    settled = {s.state for n in report.nics for s in n.settings}
    assert settled <= {"AsWanted", "Unsupported", "Refused"}
    assert "NICConfigured" in {happening.reason for happening in told}
    assert not duty.idle
    await duty_of(recorded, tmp_path, told).turn(Nics())
    assert snapshot(tmp_path / "root") == before
    assert duty_of(recorded, tmp_path, told).idle


class OnTree:
    """Knobs whose links are the recorded ones: there is no kernel behind them to ask."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded
        self.write = recorded.knobs.write

    def look(self, wanted: Nics, changed: object) -> Node:
        return self._recorded.knobs.of(self._recorded.network, wanted, changed)  # type: ignore[arg-type]


def duty_of(recorded: Recorded, folder: Path, told: list[Happening]) -> NicDuty:
    journal = Journal(folder, "boot")
    clock, hands = StepClock(), OnTree(recorded)
    around = Surroundings(lambda: 0, alone, str, str, told.append)
    return NicDuty(hands, journal, Changer(hands, journal, str, clock), clock, around)


def snapshot(root: Path) -> dict[str, str]:
    """What the kernel writes around a value is not what it is given."""
    return {
        str(path.relative_to(root)): path.read_text().strip().rpartition("=")[2]
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
