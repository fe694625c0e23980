"""Real links in a namespace: what is changed, what is refused, confirmed, rolled back, restored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agent.nics.site import API, NODE_ADDRESS, Site, state
from epfabric_crds.settings import Nics, NicSelector
from harness.netns import Namespace, namespace


def jumbo(*patterns: str, mtu: int = 9000) -> Nics:
    return Nics(mode="Configure", mtu=mtu, selector=NicSelector(names=patterns))


@pytest.fixture(scope="module")
def ns() -> Iterator[Namespace]:
    """up0 carries the node and its default route, api0 the way to the API server."""
    with namespace("epf-nic") as made:
        made.veth("up0")
        made.ip("addr", "add", f"{NODE_ADDRESS}/24", "dev", "up0")
        made.ip("route", "add", "default", "via", "192.0.2.1")
        made.veth("api0")
        made.ip("addr", "add", "198.51.100.9/24", "dev", "api0")
        for name in ("data0", "data1"):
            made.veth(name)
        yield made


@pytest.fixture
def site(ns: Namespace, tmp_path: Path) -> Iterator[Site]:
    made = Site(ns, tmp_path)
    yield made
    made.sessions, made.others, made.reach = 0, "", str
    made.turn(Nics())
    assert made.duty().idle
    assert (ns.mtu("data0"), ns.mtu("data1")) == (1500, 1500)


def test_the_chosen_links_are_set_and_restored(site: Site) -> None:
    report = site.turn(jumbo("data*"))
    assert (report.holds, report.reason) == (True, "AsWanted")
    assert [nic.name for nic in report.nics] == ["data0", "data0p", "data1", "data1p"]
    assert (site.ns.mtu("data0"), site.ns.mtu("data1")) == (9000, 9000)
    assert site.turn(jumbo("data0")).holds  # the others are not meant any more
    assert (site.ns.mtu("data0"), site.ns.mtu("data1")) == (9000, 1500)
    site.turn(replace(jumbo("data0"), mode="Observe"))
    assert site.ns.mtu("data0") == 1500
    assert set(site.reasons()) == {"NICConfigured", "NICRestored"}


def test_what_carries_the_node_is_refused_in_whatever_way(site: Site) -> None:
    ns = site.ns
    ns.ip("link", "add", "mac0", "link", "data0", "type", "macvlan", "mode", "private")
    ns.ip("link", "add", "br0", "type", "bridge")
    ns.ip("link", "set", "data1", "master", "br0")
    try:
        site.told.clear()
        report = site.turn(jumbo("up0", "api0", "data*"))
        assert "Refused: up0 carries" in state(report, "up0")
        assert f"api0 carries the route to the API server {API}" in state(report, "api0")
        assert state(report, "data0") == state(report, "data1") == "AsWanted"
        assert (ns.mtu("up0"), ns.mtu("api0")) == (1500, 1500)
        assert (report.holds, report.reason) == (False, "Refused")
        assert site.reasons().count("NICRefused") == 2
        site.turn(Nics())
        # The node's address moves to a child of data0, a default route to a bridge over data1.
        ns.ip("addr", "del", f"{NODE_ADDRESS}/24", "dev", "up0")
        ns.ip("addr", "add", f"{NODE_ADDRESS}/24", "dev", "mac0")
        ns.ip("link", "set", "br0", "up")
        ns.ip("route", "add", "default", "dev", "br0", "metric", "4000", "table", "77")
        report = site.turn(jumbo("up0", "data0", "data1"))
        assert state(report, "data0").startswith("Refused: mac0 carries the node's address")
        assert state(report, "data1").startswith("Refused: br0 carries a default route")
        assert state(report, "up0") == "AsWanted"
        assert (ns.mtu("data0"), ns.mtu("data1")) == (1500, 1500)
    finally:
        site.turn(Nics())
        ns.ip("link", "del", "mac0")
        ns.ip("link", "del", "br0")
        ns.ip("addr", "replace", f"{NODE_ADDRESS}/24", "dev", "up0")
        ns.ip("route", "replace", "default", "via", "192.0.2.1")


def test_without_a_route_to_be_sure_of_nothing_is_changed(site: Site) -> None:
    def nobody_knows() -> tuple[str, ...]:
        raise OSError("no name server")

    duty = site.duty()
    duty._hands._api_addresses = nobody_knows  # type: ignore[attr-defined]
    report = site.ns.run(lambda: duty.turn(jumbo("data0")))
    assert "what the node needs to be reached is not known: no name server" in state(
        report, "data0"
    )
    assert site.ns.mtu("data0") == 1500


def test_sessions_hold_back_what_disrupts(site: Site) -> None:
    site.sessions = 2
    report = site.turn(jumbo("data0"))
    assert state(report, "data0") == "Waiting: waits until the node's 2 session(s) have ended"
    assert site.ns.mtu("data0") == 1500
    site.sessions = 0
    assert site.turn(jumbo("data0")).holds
    site.sessions = 1  # restoring disrupts, too
    assert state(site.turn(Nics()), "data0").startswith("Waiting")
    assert site.ns.mtu("data0") == 9000


def test_a_change_that_cuts_off_the_api_server_is_rolled_back(site: Site) -> None:
    site.confirm_s = 0.5
    site.reach = lambda: "no answer" if site.ns.mtu("data0") == 9000 else ""
    report = site.turn(jumbo("data0"))
    assert "the API server was not reachable (no answer)" in state(report, "data0")
    assert "rolled back to 1500" in state(report, "data0")
    assert report.reason == "Failed"
    assert site.ns.mtu("data0") == 1500
    site.reach = str
    assert state(site.turn(jumbo("data0")), "data0").startswith("Failed")  # not again at once
    assert site.ns.mtu("data0") == 1500
    assert site.turn(jumbo("data0", mtu=8000)).holds  # another wish is another try
    assert site.ns.mtu("data0") == 8000


def test_a_change_that_takes_the_link_down_is_rolled_back(site: Site) -> None:
    site.confirm_s = 0.5

    def unplug() -> str:
        if site.ns.mtu("data0") == 9000:
            site.ns.ip("link", "set", "data0p", "down")
        return ""

    site.reach = unplug
    report = site.turn(jumbo("data0"))
    site.ns.ip("link", "set", "data0p", "up")
    assert "the link was not up" in state(report, "data0")
    assert site.ns.mtu("data0") == 1500
    assert "NICRolledBack" in site.reasons()


def test_nothing_is_tried_while_the_api_server_is_away(site: Site) -> None:
    site.reach = lambda: "refused"
    assert state(site.turn(jumbo("data0")), "data0") == (
        "Waiting: waits for the API server, to be confirmed by: refused"
    )
    assert site.journal.memory.pending is None
    assert site.ns.mtu("data0") == 1500


def test_drift_is_corrected_and_told(site: Site) -> None:
    site.turn(jumbo("data0"))
    site.ns.ip("link", "set", "data0", "mtu", "1400")
    assert site.turn(jumbo("data0")).holds
    assert site.ns.mtu("data0") == 9000
    assert site.reasons()[-1] == "NICDrifted"


def test_after_a_reboot_settings_are_applied_again(site: Site) -> None:
    site.turn(jumbo("data0"))
    site.boot = "boot-2"
    site.ns.ip("link", "set", "data0", "mtu", "1450")  # what the system sets at its boot
    assert site.turn(jumbo("data0")).holds
    assert site.ns.mtu("data0") == 9000
    site.turn(Nics())
    assert site.ns.mtu("data0") == 1450  # and not what was before the last boot
    site.ns.ip("link", "set", "data0", "mtu", "1500")


def test_observe_reports_and_changes_nothing(site: Site) -> None:
    report = site.turn(replace(jumbo("data0"), mode="Observe"))
    assert state(report, "data0") == "Differs: nics.mode is Observe: nothing is changed"
    assert (report.holds, report.reason) == (False, "Differs")
    assert site.ns.mtu("data0") == 1500
    assert not site.told


def test_another_operators_nics_are_only_read(site: Site) -> None:
    site.others = "nic-configuration-operator has the node's NICs (NicDevice x): only read"
    assert state(site.turn(jumbo("data0")), "data0") == f"Differs: {site.others}"
    assert site.ns.mtu("data0") == 1500


def test_what_the_driver_cannot_is_said(site: Site) -> None:
    most = replace(jumbo("data0"), pfc="0,0,0,1,0,0,0,0", trust="dscp", roce_mode="v2", ecn=True)
    report = site.turn(most)
    assert state(report, "data0", "mtu") == "AsWanted"
    assert state(report, "data0", "pfc") == "Unsupported: its driver has no data center bridging"
    assert state(report, "data0", "roceMode") == "Unsupported: it has no RDMA device"
    assert report.reason == "Unsupported"
    assert "MTU from 68 to 65535" in state(site.turn(jumbo("data0", mtu=60)), "data0")


def test_no_link_that_matches_is_said(site: Site) -> None:
    report = site.turn(jumbo("nosuch*"))
    assert (report.holds, report.reason) == (False, "NoNIC")
    # Without names or networks only NICs with hardware are meant: no pod's link is touched.
    assert site.turn(Nics(mode="Configure", mtu=9000)).reason == "NoNIC"
