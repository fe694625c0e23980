"""Ranges, CPUs, transport, quota, rate, callers, EPGroups: pure decisions of the agent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from epfabric_agent.groups.ranges import format_ranges, parse_ranges, spoken
from epfabric_agent.groups.state import GroupState, NodePart
from epfabric_agent.kube.group_object import Report, coordinator_of, main_part, status_part
from epfabric_agent.nic.selector import rdma_devices_of
from epfabric_agent.peers.authorize import refusal
from epfabric_agent.peers.client import Agent
from epfabric_agent.pki.identity import node_of
from epfabric_agent.pods import Pod
from epfabric_agent.proto import peer_pb2 as pb
from epfabric_agent.session.quota import MAX_POD_SESSIONS, Quota, QuotaError
from epfabric_agent.session.rate import Rate
from epfabric_agent.topology.cpus import UNPINNED, CpuLedger, Cpus, place, usable
from epfabric_agent.topology.rdma import IB, ROCE_V2, Gid, RdmaPort
from epfabric_agent.topology.transport import EFA, TCP, Port, Refusals, choose
from epfabric_crds.definitions import problems
from epfabric_crds.group import BarrierStatistics
from epfabric_crds.node import Nic
from epfabric_crds.settings import Nics, NicSelector, Transport

TWO_NODES = Cpus(tuple(range(8)), {cpu: cpu // 4 for cpu in range(8)})


def test_ranges_are_written_and_read_back() -> None:
    assert format_ranges([5, 0, 1, 2, 2]) == "0-2,5"
    assert parse_ranges("0-2,5") == (0, 1, 2, 5)
    assert format_ranges([]) == ""
    assert parse_ranges("") == ()
    assert (spoken([3]), spoken([1, 2])) == ("rank 3", "ranks 1-2")


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1--2", "1,,2"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ranges"):
        parse_ranges(text)


def test_proxies_get_cpus_of_their_own_numa_node_first() -> None:
    placement = place(2, TWO_NODES, taken={4}, numa=1, strict=False)
    assert placement.cpus == (5, 6)
    assert placement.local
    assert not placement.constrained


def test_the_nearest_node_helps_out_unless_strict() -> None:
    taken = {4, 5, 6}
    near = place(2, TWO_NODES, taken, numa=1, strict=False)
    assert near.cpus == (7, 0)
    assert not near.local
    strict = place(2, TWO_NODES, taken, numa=1, strict=True)
    assert strict.cpus == (7,)
    assert strict.constrained


def test_no_two_proxies_ever_own_one_cpu_and_one_proxy_is_always_there() -> None:
    ledger = CpuLedger()
    cpus = [ledger.take(s, 3, TWO_NODES, None, strict=False).cpus for s in range(4)]
    owned = [cpu for each in cpus for cpu in each if cpu != UNPINNED]
    assert len(owned) == len(set(owned)) == 8
    assert cpus[3] == (UNPINNED,)
    assert ledger.constrained
    ledger.give_back(0)
    assert ledger.take(9, 3, TWO_NODES, None, strict=False).cpus == cpus[0]


def test_a_proxy_that_runs_on_keeps_its_cpu_until_it_is_given_back() -> None:
    ledger = CpuLedger()
    first = ledger.take(0, 3, TWO_NODES, None, strict=False).cpus
    ledger.keep_first(0)
    assert ledger.taken() == {first[0]}
    assert first[0] not in ledger.take(1, 8, TWO_NODES, None, strict=False).cpus
    ledger.give_back(0)
    assert first[0] in ledger.take(2, 8, TWO_NODES, None, strict=False).cpus


def test_usable_cpus_are_those_that_every_limit_allows() -> None:
    assert usable([(0, 1, 2, 3), frozenset({1, 2, 9}), ()]) == (1, 2)
    assert usable([(), ()]) == ()


def rdma_port(device: str, *gids: str, active: bool = True) -> RdmaPort:
    return RdmaPort(device, 1, active, tuple(Gid(gid, ROCE_V2) for gid in gids))


def test_auto_never_picks_tcp_unless_allowed() -> None:
    for ports in ((), (rdma_port("mlx5_0", "10.0.0.1"),)):
        refused = choose(Transport(), Nics(), ports, ())
        assert not refused.usable
        assert "allowTcp" in refused.reason
        allowed = choose(Transport(allow_tcp=True), Nics(), ports, ())
        assert (allowed.type, allowed.provider) == ("libfabric", TCP)
    assert not choose(Transport(type="libfabric"), Nics(), (), ()).usable
    assert not choose(Transport(type="verbs", allow_tcp=True), Nics(), (), ()).usable
    assert choose(Transport(type="loopback"), Nics(), (), ()).provider == ""


def test_verbs_is_chosen_where_a_nic_of_the_fabric_can_be_used() -> None:
    ports = (
        rdma_port("mlx5_0", "10.0.0.1", "10.0.0.2"),
        rdma_port("mlx5_1", "10.0.1.1"),
        rdma_port("mlx5_2", "10.0.2.1", active=False),
        rdma_port("mlx5_3"),
    )
    meant = ("mlx5_1", "mlx5_2", "mlx5_3")
    for wanted in (Transport(), Transport(allow_tcp=True), Transport(type="verbs")):
        chosen = choose(wanted, Nics(), ports, meant)
        assert (chosen.type, chosen.provider) == ("verbs", "")
        assert chosen.ports == (("mlx5_1", 1, "10.0.1.1"),)
    told = choose(Transport(type="verbs"), Nics(), ports[:1] + ports[2:], meant).reason
    assert "mlx5_0 is not among spec.nics" in told
    assert "mlx5_2 is down (port 1)" in told
    assert "mlx5_3 has no GID of RoCE v2" in told
    by_hand = choose(Transport(type="libfabric", allow_tcp=True), Nics(), ports, meant)
    assert by_hand.type == "libfabric"
    v1 = choose(Transport(type="verbs"), Nics(roce_mode="v1"), ports, meant)
    assert "has no GID of RoCE v1" in v1.reason


MLX = (rdma_port("mlx5_1", "10.0.1.1"), rdma_port("mlx5_10", "10.0.10.1"))
KEYS = (("mlx5_1", 1, "10.0.1.1"), ("mlx5_10", 1, "10.0.10.1"))


def test_a_port_that_the_core_refused_is_left_out_and_named() -> None:
    meant = ("mlx5_1", "mlx5_10")
    refused = {KEYS[1]: "mlx5_10 is unfit: it cannot do this"}
    beside = choose(Transport(), Nics(), MLX, meant, refused)
    assert (beside.type, beside.ports) == ("verbs", KEYS[:1])
    assert beside.reason.count("mlx5_10 is unfit: ") == 1
    assert "it cannot do this" in beside.reason
    for wanted in (Transport(), Transport(type="verbs")):
        alone = choose(wanted, Nics(), MLX[1:], meant, refused)
        assert not alone.usable
        assert "no RDMA NIC can be used: mlx5_10 is unfit: it cannot do this" in alone.reason
    allowed = choose(Transport(allow_tcp=True), Nics(), MLX[1:], meant, refused)
    assert (allowed.type, allowed.provider) == ("libfabric", TCP)
    assert "mlx5_10 is unfit: it cannot do this" in allowed.reason
    moved = (rdma_port("mlx5_10", "10.0.10.2"),)
    assert choose(Transport(), Nics(), moved, meant, refused).type == "verbs"


def test_verbs_takes_only_roce_with_an_interface_or_infiniband() -> None:
    def chosen(port: RdmaPort) -> str:
        found = choose(Transport(), Nics(), (port,), ("x",))
        return found.type or found.reason

    ib = RdmaPort("x", 1, True, (Gid("fe80::1", IB),))
    assert chosen(replace(ib, infiniband=True, interface=False)) == "verbs"
    assert "has no GID of RoCE v2" in chosen(ib)  # iWARP
    assert "no network interface" in chosen(replace(ib, interface=False))
    roce = rdma_port("x", "10.0.0.1")
    assert chosen(roce) == "verbs"
    beside = choose(Transport(), Nics(), (EFAS[0], roce), ("x", "rdmap0"))
    assert (beside.type, beside.ports) == ("verbs", (("x", 1, "10.0.0.1"),))


EFAS = tuple(
    RdmaPort(device, 1, active, (Gid("fe80::1", IB),), interface=False, driver="efa")
    for device, active in (("rdmap0", True), ("rdmap1", True), ("rdmap2", False))
)
EFA_KEYS = (("rdmap0", 1, ""), ("rdmap1", 1, ""))


@pytest.mark.parametrize("rails", ["Auto", "Connected", "Separate"])
def test_nics_are_chosen_for_a_gpu_only_where_all_are_said_or_known_to_reach_each_other(
    rails: Literal["Auto", "Connected", "Separate"],
) -> None:
    nics = Nics(rails=rails)
    roce = (rdma_port("roce0", "10.0.0.1"), rdma_port("roce1", "10.0.1.1"))
    infiniband = tuple(
        RdmaPort(name, 1, True, (Gid("fe80::1", IB),), infiniband=True) for name in ("ib0", "ib1")
    )
    efa = (RdmaPort("efa0", 1, True, (), driver=EFA),)

    def connected(*ports: RdmaPort) -> bool:
        return choose(Transport(), nics, ports, [port.device for port in ports]).connected

    assert connected(*roce) == connected(*roce, *infiniband) == (rails == "Connected")
    assert connected(*infiniband) == connected(*efa) == (rails != "Separate")


def test_it_is_said_how_roce_is_taken_where_nobody_said_what_it_is() -> None:
    ports = (rdma_port("roce0", "10.0.0.1"), rdma_port("roce1", "10.0.1.1"))

    def reason(rails: Literal["Auto", "Connected", "Separate"], count: int) -> str:
        return choose(Transport(), Nics(rails=rails), ports[:count], ["roce0", "roce1"]).reason

    assert "set spec.nics.rails" in reason("Auto", 2)
    said = (reason("Auto", 1), reason("Connected", 2), reason("Separate", 2))
    assert not any("rails" in one for one in said)


def test_efa_is_used_by_its_provider_and_before_tcp() -> None:
    meant = ("rdmap0", "rdmap1", "rdmap2")
    for wanted in (Transport(), Transport(allow_tcp=True), Transport(type="libfabric")):
        chosen = choose(wanted, Nics(), EFAS, meant)
        assert (chosen.type, chosen.provider, chosen.ports) == ("libfabric", EFA, EFA_KEYS)
        assert "over EFA: rdmap0, rdmap1" in chosen.reason
    tcp_alone = Transport(type="libfabric", allow_tcp=True)
    assert choose(tcp_alone, Nics(), EFAS, meant).provider == TCP
    named = choose(Transport(), Nics(), EFAS, ("rdmap1",))
    assert named.ports == EFA_KEYS[1:]
    assert not choose(Transport(), Nics(), EFAS, ()).usable
    forced = choose(Transport(type="verbs"), Nics(), EFAS, meant)
    assert not forced.usable
    assert "rdmap0 is unfit: it has no reliable connections" in forced.reason


def test_an_efa_device_that_the_core_refused_is_left_out_and_named() -> None:
    meant, why = ("rdmap0", "rdmap1"), "rdmap0 is unfit: it has no RDMA write"
    beside = choose(Transport(), Nics(), EFAS, meant, {EFA_KEYS[0]: why})
    assert (beside.provider, beside.ports) == (EFA, EFA_KEYS[1:])
    assert beside.reason.count(why) == 1
    refused = dict.fromkeys(EFA_KEYS, why)
    assert not choose(Transport(), Nics(), EFAS, meant, refused).usable
    assert choose(Transport(allow_tcp=True), Nics(), EFAS, meant, refused).provider == TCP


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        ("making a completion queue of port 1 of RDMA device mlx5_10 failed", KEYS[1:]),
        ("there is no RDMA device mlx5_1 here, only: mlx5_10", KEYS[:1]),
        ("listing RDMA devices failed", KEYS),
    ],
)
def test_the_port_that_an_error_names_is_refused_until_it_is_found_changed(
    error: str, blamed: tuple[Port, ...]
) -> None:
    refusals = Refusals()
    refusals.add(KEYS, error, MLX)
    refusals.keep(MLX)
    assert refusals.reasons == dict.fromkeys(blamed, error)
    changed = [replace(port, active=False) for port in MLX]
    refusals.keep(changed)
    assert refusals.reasons == {}
    refusals.add(KEYS, error, ())  # gone by then
    refusals.keep(MLX)
    assert refusals.reasons == {}


def test_of_a_device_with_two_ports_the_one_that_is_named_is_refused() -> None:
    ports = (("mlx4_0", 1, "10.0.0.1"), ("mlx4_0", 2, "10.0.0.2"))
    refusals = Refusals()
    refusals.add(ports, "port 2 of RDMA device mlx4_0 has too small completion queues", ())
    assert set(refusals.reasons) == {ports[1]}
    refusals.add(ports, "RDMA device mlx4_0 cannot be opened: no permission", ())
    assert set(refusals.reasons) == set(ports)


def test_the_fabrics_rdma_devices_are_those_that_its_selector_means() -> None:
    nics = (
        Nic(name="eth0", addresses=("10.0.0.1",)),
        Nic(name="eth1", rdma_device="mlx5_1", driver="mlx5_core", addresses=("10.0.1.1",)),
        Nic(name="eth2", rdma_device="bnxt_2", driver="bnxt_en", addresses=("10.0.2.1",)),
    )
    assert rdma_devices_of(None, nics) == {"mlx5_1", "bnxt_2"}
    assert rdma_devices_of(NicSelector(names=("mlx5_*",)), nics) == {"mlx5_1"}
    assert rdma_devices_of(NicSelector(drivers=("bnxt_en",)), nics) == {"bnxt_2"}
    assert rdma_devices_of(NicSelector(cidrs=("10.0.2.0/24",)), nics) == {"bnxt_2"}
    assert rdma_devices_of(NicSelector(names=("eth0",)), nics) == frozenset()


def pod(key: str) -> Pod:
    return Pod(key, "ns", key, "group", None, Path("/nowhere"))


def test_the_quota_counts_by_pod_and_node_and_is_given_back() -> None:
    quota = Quota(per_pod_bytes=100, per_node_bytes=150)
    first = quota.grant(pod("p"), 80)
    with pytest.raises(QuotaError, match="perPod"):
        quota.grant(pod("p"), 30)
    with pytest.raises(QuotaError, match="perNode"):
        quota.grant(pod("q"), 90)
    quota.release(first)
    assert quota.used_bytes == 0
    quota.grant(pod("q"), 100)


def test_a_pod_has_a_bounded_number_of_sessions() -> None:
    quota = Quota(1, 1)
    for _ in range(MAX_POD_SESSIONS):
        quota.open_session(pod("p"))
    with pytest.raises(QuotaError):
        quota.open_session(pod("p"))
    quota.close_session(pod("p"))
    quota.open_session(pod("p"))


def test_a_flood_of_requests_is_slowed_to_the_rate() -> None:
    rate = Rate(per_s=10.0, burst=5)
    assert [rate.take(0.0) for _ in range(5)] == [0.0] * 5
    assert rate.take(0.0) == pytest.approx(0.1)
    assert rate.take(0.0) == pytest.approx(0.2)
    assert rate.take(10.0) == 0.0


def test_a_caller_must_be_the_node_and_fabric_of_its_certificate() -> None:
    names = ["n1.moe.agents.epfabric.io", "192.0.2.1"]
    assert refusal(pb.Caller(node="n1", fabric="moe"), names, "moe") is None
    assert "n1" in (refusal(pb.Caller(node="n2", fabric="moe"), names, "moe") or "")
    assert refusal(pb.Caller(node="n1", fabric="other"), names, "moe")
    assert refusal(pb.Caller(node="n1", fabric="moe"), ["n1.other.agents.epfabric.io"], "moe")
    assert refusal(pb.Caller(node="n1", fabric="moe"), [], "moe")


def test_a_node_name_with_dots_is_read_whole() -> None:
    assert node_of(["a.b.c.moe.agents.epfabric.io"], "moe") == "a.b.c"
    assert node_of([".moe.agents.epfabric.io"], "moe") is None
    assert node_of(["a.moe.agents.epfabric.io", "b.moe.agents.epfabric.io"], "moe") is None


def test_an_epgroup_fits_its_schema_and_leads_others_to_the_coordinator() -> None:
    pod = Pod("k", "ns", "p-0", "train", None, Path("/x"), uid="u")
    state = GroupState("Ready", "", 2, 4, (NodePart("a", "192.0.2.1:7", "0-3"),))
    report = Report(pod, state, BarrierStatistics(count=3, p50_seconds=0.1))
    whole = main_part(report, "moe") | status_part(report, Agent("a", "192.0.2.1:7"))
    whole["spec"] = main_part(report, "moe")["spec"]
    assert problems("EPGroup", whole) == []
    (owner,) = main_part(report, "moe")["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Pod", "name": "p-0", "uid": "u"}
    without = Report(pod, replace(state, masked="0,2"))
    assert "ownerReferences" not in main_part(without, "moe")["metadata"]
    without = Report(pod, replace(state, masked="1-2"))
    assert main_part(without, "moe")["metadata"]["ownerReferences"] == [owner]
    assert coordinator_of(whole, "b") == Agent("a", "192.0.2.1:7")
    assert coordinator_of(whole, "a") is None
    assert coordinator_of(None, "b") is None


def test_barriers_of_an_old_epoch_do_not_stay_in_a_new_one() -> None:
    pod = Pod("k", "ns", "p-0", "train", None, Path("/x"))
    old = Report(pod, GroupState("Completed", "", 1, 2, ())).with_barriers(
        1, BarrierStatistics(count=3)
    )
    assert old.barriers is not None
    new = old.with_state(pod, GroupState("Forming", "", 2, 2, ()))
    assert new.barriers is None
    assert new.with_barriers(1, BarrierStatistics(count=3)).barriers is None
