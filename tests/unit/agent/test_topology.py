"""Topology from a made-up sysfs: cpusets of both versions, NICs, rails, GPUs, and none of it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

from epfabric_agent.topology.cpus import place
from epfabric_agent.topology.discover import with_nics
from epfabric_agent.topology.gpus import find_gpus
from epfabric_agent.topology.machine import Machine
from epfabric_agent.topology.nics import find_nics
from epfabric_agent.topology.numa import cgroup_cpus, find_cpus
from epfabric_agent.topology.rdma import (
    IB,
    ROCE_V1,
    ROCE_V2,
    Gid,
    RdmaPort,
    choose_gid,
    find_ports,
    openable_devices,
    spoken,
)
from epfabric_crds.node import Nic


def machine(root: Path, files: dict[str, str], links: dict[str, str] | None = None) -> Machine:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    for name, target in (links or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / target).mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    return Machine(root, lambda: frozenset(range(16)), lambda: {"eth0": ("192.0.2.1",)})


NUMA = {
    "sys/devices/system/cpu/online": "0-7",
    "sys/devices/system/node/node0/cpulist": "0-3",
    "sys/devices/system/node/node1/cpulist": "4-7",
}


def test_cpus_are_those_of_the_innermost_cpuset_version_2(tmp_path: Path) -> None:
    files = NUMA | {
        "proc/self/cgroup": "0::/kubepods/pod1/c1",
        "sys/fs/cgroup/kubepods/pod1/cpuset.cpus.effective": "2-5",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-7",
    }
    cpus = find_cpus(machine(tmp_path, files))
    assert cpus.usable == (2, 3, 4, 5)
    assert [cpus.numa_of[cpu] for cpu in cpus.usable] == [0, 0, 1, 1]
    assert cpus.text() == "2-5"


def test_the_nearest_numa_node_is_the_one_that_the_firmware_calls_so(tmp_path: Path) -> None:
    files = {f"sys/devices/system/node/node{n}/cpulist": f"{2 * n}-{2 * n + 1}" for n in range(4)}
    for node, row in enumerate(("10 30 20 30", "30 10 30 20", "20 30 10 30", "30 20 30 10")):
        files[f"sys/devices/system/node/node{node}/distance"] = row
    cpus = find_cpus(machine(tmp_path, files))
    assert place(2, cpus, {2, 3}, numa=1, strict=False).cpus == (6, 7)
    (tmp_path / "sys/devices/system/node/node1/distance").write_text("10 what")
    assert place(2, find_cpus(machine(tmp_path, {})), {2, 3}, numa=1, strict=False).cpus == (0, 1)


def test_cpus_are_those_of_the_cpuset_version_1(tmp_path: Path) -> None:
    files = NUMA | {
        "proc/self/cgroup": "4:cpu,cpuacct:/x\n3:cpuset:/docker/abc\n1:name=systemd:/y",
        "sys/fs/cgroup/cpuset/cpuset.effective_cpus": "1,3",
    }
    assert find_cpus(machine(tmp_path, files)).usable == (1, 3)


def test_a_path_that_climbs_out_of_the_cgroup_mount_is_not_followed(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/../../../outside",
        "sys/outside/cpuset.cpus.effective": "9",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-1",
    }
    assert cgroup_cpus(machine(tmp_path, files)) == (0, 1)


def test_nics_have_driver_address_and_rails_in_pci_order(tmp_path: Path) -> None:
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    for name, pci, device in (
        ("eth0", "0000:81:00.0", "mlx5_1"),
        ("eth1", "0000:21:00.0", "mlx5_0"),
    ):
        files |= {
            f"sys/devices/{pci}/numa_node": "1",
            f"sys/class/net/{name}/mtu": "9000",
            f"sys/class/net/{name}/speed": "200000",
            f"sys/class/net/{name}/operstate": "up",
            f"sys/devices/{pci}/net/{name}/x": "",
        }
        links |= {
            f"sys/class/net/{name}/device": f"../../../devices/{pci}",
            f"sys/class/infiniband/{device}/device": f"../../../devices/{pci}",
            f"sys/devices/{pci}/driver": "../../bus/pci/drivers/mlx5_core",
        }
    files |= {"sys/class/net/lo/mtu": "65536", "sys/class/net/veth9/mtu": "1500"}
    first, second = find_nics(machine(tmp_path, files, links))
    assert (first.name, first.rdma_device, first.rail) == ("eth0", "mlx5_1", 1)
    assert (second.name, second.rdma_device, second.rail) == ("eth1", "mlx5_0", 0)
    assert first.driver == "mlx5_core"
    assert first.pci_address == "0000:81:00.0"
    assert (first.numa_node, first.mtu, first.speed_mbps) == (1, 9000, 200000)
    assert first.addresses == ("192.0.2.1",)


def test_gpus_come_from_the_drivers_files(tmp_path: Path) -> None:
    folder = "proc/driver/nvidia/gpus"
    files = {
        f"{folder}/0000:17:00.0/information": "Model: X\nGPU UUID: \t GPU-1234",
        f"{folder}/0000:18:00.0/information": "GPU UUID: GPU-????????",
        "sys/bus/pci/devices/0000:17:00.0/numa_node": "1",
    }
    (gpu,) = find_gpus(machine(tmp_path, files))
    assert (gpu.uuid, gpu.pci_address, gpu.numa_node) == ("GPU-1234", "0000:17:00.0", 1)


def test_a_machine_that_has_nothing_is_calm(tmp_path: Path) -> None:
    nothing = Machine(tmp_path, lambda: frozenset({0}), dict)
    assert find_nics(nothing) == ()
    assert find_gpus(nothing) == ()
    assert find_cpus(nothing).usable == (0,)


def test_no_pyverbs_and_no_device_are_both_none() -> None:
    def absent(name: str) -> object:
        raise ImportError(name)

    def raising() -> object:
        raise RuntimeError("Failed to get device list")  # what pyverbs does without a device

    present = [SimpleNamespace(name=b"mlx5_1"), SimpleNamespace(name=b"mlx5_0")]
    assert openable_devices(absent) == ()
    assert openable_devices(lambda name: SimpleNamespace(get_device_list=raising)) == ()
    found = openable_devices(lambda name: SimpleNamespace(get_device_list=lambda: present))
    assert found == ("mlx5_0", "mlx5_1")
    assert find_ports(absent) == ()


def test_a_device_that_cannot_be_opened_hides_no_other() -> None:
    def context(name: str) -> object:
        if name == "mlx5_0":
            raise RuntimeError("no permission")
        entry = SimpleNamespace(port_num=1, gid_type=ROCE_V2, gid_str=lambda: f"{'0:' * 7}1")
        return nullcontext(
            SimpleNamespace(
                query_device=lambda: SimpleNamespace(phys_port_cnt=2),
                query_port=lambda number: SimpleNamespace(
                    state=4 if number == 1 else 1, gid_tbl_len=8, link_layer=3 - number
                ),
                query_gid_table=lambda size: [entry],
            )
        )

    listed = [SimpleNamespace(name=b"mlx5_1"), SimpleNamespace(name=b"mlx5_0")]
    module = SimpleNamespace(get_device_list=lambda: listed, Context=context)
    first, second = find_ports(lambda name: module)
    assert (first.device, first.number, first.active) == ("mlx5_1", 1, True)
    assert first.gids == (Gid("::1", ROCE_V2),)
    assert (second.number, second.active, second.gids) == (2, False, ())
    assert (first.infiniband, second.infiniband) == (False, True)


def test_ports_know_the_driver_and_whether_there_is_an_interface() -> None:
    ports = [RdmaPort(device, 1, True, ()) for device in ("mlx5_0", "rdmap0", "mlx5_9")]
    nics = (
        Nic(name="eth0", rdma_device="mlx5_0", driver="mlx5_core"),
        Nic(name="eth1"),
        Nic(name="rdmap0", rdma_device="rdmap0", driver="efa"),
    )
    found = [(port.interface, port.driver) for port in with_nics(ports, nics)]
    assert found == [(True, "mlx5_core"), (False, "efa"), (True, "")]


def test_a_gid_is_chosen_by_kind_and_address() -> None:
    assert spoken("0000:0000:0000:0000:0000:ffff:0a09:0001") == "10.9.0.1"
    assert spoken("fe80:0000:0000:0000:0000:0000:0000:0001") == "fe80::1"
    table = [
        Gid("fe80::1", ROCE_V1),
        Gid("fe80::1", ROCE_V2),
        Gid("10.0.0.9", ROCE_V1),
        Gid("2001:db8::1", ROCE_V2),
        Gid("10.0.0.9", ROCE_V2),
        Gid("10.0.0.10", ROCE_V2),
    ]
    for turn in range(len(table)):  # whatever their indexes are
        turned = table[turn:] + table[:turn]
        assert choose_gid(turned, None) == "10.0.0.9"
        assert choose_gid(turned, "v1") == "10.0.0.9"
        assert choose_gid(turned, "v2", ["2001:db8::/32"]) == "2001:db8::1"
    assert choose_gid(table[:2], None) == "fe80::1"
    assert choose_gid(table[:1], None) == ""
    assert choose_gid([Gid("fe80::2", IB)], None) == "fe80::2"
