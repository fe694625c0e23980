"""What the planner decides where bonds, VLANs, failures and earlier values meet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from epfabric_agent.nic.facts import Link, Network, Nic, Node, Reading, Route
from epfabric_agent.nic.journal import Failure, Memory
from epfabric_agent.nic.plan import Plan, Situation, plan
from epfabric_agent.nic.protect import protected
from epfabric_agent.nic.selector import selects
from epfabric_agent.nic.targets import DSCP_MAP, target
from epfabric_crds.settings import Nics, NicSelector

LINKS = (
    Link("eth0", 1, 1500, master=3, max_mtu=9000),
    Link("eth1", 2, 1500, master=3, max_mtu=9000),
    Link("bond0", 3, 1500, kind="bond", max_mtu=65535),
    Link("bond0.7", 4, 1500, kind="vlan", parent=3, max_mtu=65535),
    Link("eth2", 5, 1500, max_mtu=9000),
    Link("eth2.8", 6, 1500, kind="vlan", parent=5, max_mtu=65535),
    Link("eth2.9", 7, 1500, kind="vlan", parent=5, max_mtu=65535),
)


def node(*changed: Link, routes: tuple[Route, ...] = (), address: str = "") -> Node:
    links = {link.index: link for link in (*LINKS, *changed)}
    nics = tuple(
        Nic(
            name=link.name,
            index=link.index,
            hardware=not link.kind,
            addresses=link.addresses,
            readings={"mtu": Reading(str(link.mtu))},
        )
        for link in links.values()
    )
    return Node(nics, Network(links, routes, node_address=address))


def wish(*names: str, mtu: int | None = 9000) -> Nics:
    return Nics(mode="Configure", mtu=mtu, selector=NicSelector(names=names))


def by_nic(found: Plan) -> dict[str, str]:
    return {f.nic: f"{f.state} {f.reason}".strip() for f in found.findings}


@pytest.mark.parametrize("carrier", [1, 2, 3, 4])
def test_a_bond_its_members_and_its_vlans_stand_and_fall_together(carrier: int) -> None:
    closed = protected(node(routes=(Route(carrier, default=True),)))
    assert set(closed) == {1, 2, 3, 4}
    assert closed[carrier].endswith("carries a default route")
    assert all("carries a default route" in why for why in closed.values())


@pytest.mark.parametrize("carrier", [5, 6])
def test_a_vlan_beside_the_nodes_own_is_refused_too(carrier: int) -> None:
    carries = replace(LINKS[carrier - 1], addresses=("192.0.2.1",))
    assert set(protected(node(carries, address="192.0.2.1"))) == {5, 6, 7}


@pytest.mark.parametrize("text", ["2001:DB8::1", "2001:db8:0:0:0:0:0:1", "[2001:db8::1]"])
def test_an_address_protects_in_whatever_way_it_is_written(text: str) -> None:
    carries = replace(LINKS[4], addresses=("10.0.0.1", "2001:db8::1"))
    assert set(protected(node(carries, address=text))) == {5, 6, 7}
    assert protected(node(carries, address="a.example")) == {}


def test_a_route_that_is_no_default_protects_nothing() -> None:
    assert protected(node(routes=(Route(5, default=False),))) == {}


def test_members_follow_their_bond_and_vlans_their_parent() -> None:
    found = by_nic(plan(wish("*"), node(), Memory(), Situation()))
    assert found["eth0"] == "Refused it is a member of bond0, which sets its MTU: select " + (
        "that by name"
    )
    assert found["bond0"] == "Waiting is being changed"
    assert found["bond0.7"] == "Refused bond0 below it has MTU 1500: select that too, by name"
    raised = (replace(link, mtu=9000) for link in LINKS[:3])
    found = by_nic(plan(wish("*"), node(*raised), Memory(), Situation()))
    assert (found["bond0"], found["bond0.7"]) == ("AsWanted", "Waiting is being changed")


def test_a_parent_is_not_lowered_below_its_vlan() -> None:
    high = [replace(link, mtu=9000) for link in LINKS[4:]]
    found = by_nic(plan(wish("eth2", mtu=1500), node(*high), Memory(), Situation()))
    assert found["eth2"] == "Refused the VLAN eth2.8 on it has MTU 9000: lower that first"


def test_a_bond_of_unequal_members_is_left_alone() -> None:
    odd = replace(LINKS[1], mtu=1400)
    found = by_nic(plan(wish("bond0"), node(odd), Memory(), Situation()))
    assert found["bond0"].startswith("Refused its member eth1 has another MTU, 1400")


def test_a_failure_is_not_repeated_before_its_time() -> None:
    failed = Memory(failures={("eth2", "mtu"): Failure("9000", "no carrier", 100.0)})
    early = plan(wish("eth2"), node(), failed, Situation(now_s=99.0))
    assert (by_nic(early)["eth2"], early.changes) == ("Failed no carrier", ())
    assert plan(wish("eth2"), node(), failed, Situation(now_s=100.0)).changes
    assert plan(wish("eth2", mtu=8000), node(), failed, Situation(now_s=0.0)).changes


def test_only_what_was_changed_is_restored() -> None:
    memory = Memory(originals={("eth2", "mtu"): "1500"})
    high = replace(LINKS[4], mtu=9000)
    (change,) = plan(Nics(), node(high), memory, Situation()).changes
    assert (change.nic, change.old, change.new, change.restores) == ("eth2", "9000", "1500", True)
    still = plan(Nics(), node(high, routes=(Route(5, default=True),)), memory, Situation())
    assert (by_nic(still)["eth2"].split()[0], still.changes) == ("Refused", ())


def test_an_earlier_value_is_not_lost_by_another_wish() -> None:
    memory = Memory(originals={("eth2", "mtu"): "1400"})
    (change,) = plan(wish("eth2"), node(), memory, Situation()).changes
    assert (change.new, change.restores) == ("9000", False)


@pytest.mark.parametrize(
    ("selector", "chosen"),
    [
        (None, {"eth0"}),
        (NicSelector(names=("*",)), {"eth0", "v0", "lo[1]"}),
        (NicSelector(names=("mlx5_*",)), {"eth0"}),
        (NicSelector(names=("lo[1]",)), {"lo[1]"}),
        (NicSelector(names=("et?0",)), set()),
        (NicSelector(drivers=("mlx5_core",), names=("v*",)), set()),
        (NicSelector(cidrs=("10.0.0.0/8", "fd00::/8")), {"eth0", "v0"}),
        (NicSelector(pci_addresses=("0000:3b:00.0",)), {"eth0"}),
    ],
)
def test_a_selector_means_what_matches_every_list(
    selector: NicSelector | None, chosen: set[str]
) -> None:
    nics = (
        Nic(
            "eth0",
            1,
            driver="mlx5_core",
            pci_address="0000:3b:00.0",
            rdma_device="mlx5_0",
            hardware=True,
            addresses=("10.1.2.3",),
        ),
        Nic("v0", 2, addresses=("192.0.2.1", "fd00::1")),
        Nic("lo[1]", 3),
    )
    assert {nic.name for nic in nics if selects(selector, nic)} == chosen


@pytest.mark.parametrize(
    ("setting", "wanted", "current", "goal"),
    [
        ("trust", Nics(trust="dscp"), "pcp", DSCP_MAP),
        ("trust", Nics(trust="dscp"), "dscp=" + "3" * 64, "dscp=" + "3" * 64),
        ("trust", Nics(trust="pcp"), DSCP_MAP, "pcp"),
        ("tos", Nics(tos=0), "7", "0"),
        ("tos", Nics(tos=96), "0/-1", "96/96"),
        ("ecn", Nics(ecn=True), "0", "1"),
        ("ecn", Nics(ecn=False), "11111111/11111111", "00000000/00000000"),
        ("ecn", Nics(ecn=False, pfc="0,0,0,1,0,0,0,0"), "11111111/11110000", "11101111/11100000"),
        ("ecn", Nics(ecn=True, pfc="0,0,0,0,0,0,0,0"), "00000000/00000000", "11111111/11111111"),
        ("mtu", Nics(), "1500", None),
    ],
)
def test_a_target_changes_only_what_it_is_asked(
    setting: str, wanted: Nics, current: str, goal: str | None
) -> None:
    assert target(setting, wanted, current) == goal


def test_a_nics_key_stays_when_links_of_its_function_come() -> None:
    pci = "0000:3b:00.0"
    first, second = Nic("eth9", 2, pci_address=pci, port="p0"), Nic("eth1", 5, pci_address=pci)
    stands = Nic("eth0", 1, pci_address=pci, port="pf0vf3")
    for nics in ((first,), (first, second), (stands, first, second)):
        assert Node(nics, Network({})).key(first) == pci
    alone = Node((stands,), Network({}))
    assert (alone.key(stands), alone.by_key(pci)) == ("eth0", None)
    assert Node((first, second), Network({})).key(second) == "eth1"
