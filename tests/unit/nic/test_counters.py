"""Which of the NICs' counters moved while a barrier was late, from a sysfs of the test's own."""

from __future__ import annotations

from pathlib import Path

from epfabric_agent.nic.counters import MOST_SHOWN, NicFaults, moved, read_counters
from epfabric_agent.topology.machine import Machine

NET = "sys/class/net"
PORT = "sys/class/infiniband/mlx5_0/ports/1"


def write(root: Path, path: str, value: object) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{value}\n")


def machine(root: Path) -> Machine:
    write(root, f"{NET}/eth0/statistics/rx_dropped", 5)
    write(root, f"{NET}/eth0/statistics/tx_errors", 0)
    write(root, f"{NET}/eth0/statistics/rx_bytes", 123)
    write(root, f"{NET}/lo/statistics/rx_dropped", 7)
    write(root, f"{PORT}/hw_counters/out_of_sequence", 40)
    write(root, f"{PORT}/hw_counters/rx_write_requests", 9)
    write(root, f"{PORT}/counters/port_rcv_data", 9)
    write(root, f"{PORT}/counters/symbol_error", "nonsense")
    return Machine(root)


TROUBLE = (
    "link_downed",
    "VL15_dropped",
    "port_rcv_switch_relay_errors",
    "excessive_buffer_overrun_errors",
    "link_error_recovery",
    "out_of_sequence",
    "out_of_buffer",
    "duplicate_request",
    "rnr_nak_retry_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
    "np_ecn_marked_roce_packets",
    "rx_icrc_encapsulated",
    "retry_exceeded_err",  # rxe's
    "rx_drops",  # EFA's
    "RxECNMrkd",  # irdma's, as the next
    "cnpHandled",
    "ip4InDiscards",
)
TRAFFIC = (
    "port_rcv_data",
    "port_xmit_packets",
    "unicast_rcv_packets",
    "rx_write_requests",
    "lifespan",
    "rdma_sends",  # rxe's
    "rdma_recvs",
    "ack_deferred",
    "send_wrs",  # EFA's
    "recv_wrs",
    "rdma_read_wrs",
    "rdma_write_wrs",
    "submitted_cmds",
    "completed_cmds",
    "keep_alive_rcvd",
)


def test_of_an_rdma_port_only_what_tells_of_trouble_is_named(tmp_path: Path) -> None:
    for name in TROUBLE + TRAFFIC:
        write(tmp_path, f"{PORT}/hw_counters/{name}", 1)
    assert set(read_counters(Machine(tmp_path))) == {f"mlx5_0/1 {name}" for name in TROUBLE}


def test_faults_are_read_and_traffic_is_not(tmp_path: Path) -> None:
    assert read_counters(machine(tmp_path)) == {
        "eth0 rx_dropped": 5,
        "eth0 tx_errors": 0,
        "mlx5_0/1 out_of_sequence": 40,
    }
    assert read_counters(Machine(tmp_path / "nothing")) == {}


def test_what_began_anew_counts_from_nothing() -> None:
    assert moved({"a": 5, "b": 2, "c": 1}, {"a": 5, "b": 1, "d": 3}) == {"d": 3, "b": 1}


def test_only_what_moved_since_the_barrier_began_is_named(tmp_path: Path) -> None:
    clock = [0.0]
    faults = NicFaults(machine(tmp_path), clock=lambda: clock[0])
    assert "not looked at" in faults.since(30)
    faults.look()
    write(tmp_path, f"{NET}/eth0/statistics/rx_dropped", 50)  # long before
    clock[0] = 100.0
    faults.look()
    clock[0] = 120.0
    faults.look()
    write(tmp_path, f"{PORT}/hw_counters/out_of_sequence", 44)
    clock[0] = 131.0
    said = faults.since(30)
    assert "mlx5_0/1 out_of_sequence +4" in said
    assert "in the last 31 s" in said
    assert "eth0" not in said
    assert "rdma statistic" in said
    clock[0] = 200.0
    faults.look()
    clock[0] = 240.0
    assert "no error or drop counter" in faults.since(30)


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    faults = NicFaults(machine(tmp_path), clock=lambda: 0.0)
    faults.look()
    for i in range(MOST_SHOWN + 3):
        write(tmp_path, f"{NET}/eth{i + 1}/statistics/rx_missed_errors", i + 1)
    assert "and 3 more" in faults.since(1)
