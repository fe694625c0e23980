"""Slots: how many, where, as which devices; claims that come twice or after a reboot."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from epfabric_agent.kubelet_plugin import listen
from epfabric_agent.proto import (
    deviceplugin_pb2,
    deviceplugin_pb2_grpc,
    dra_pb2,
    dra_pb2_grpc,
)
from epfabric_agent.slots.claims import Claim, ClaimError, Claims
from epfabric_agent.slots.device_plugin import PluginService, Registrar, devices, spread
from epfabric_agent.slots.dra import DraService
from epfabric_agent.slots.rails import Rail, device, pcie_roots, rails_of
from epfabric_agent.slots.slices import slice_of
from epfabric_agent.topology.cpus import Cpus
from epfabric_agent.topology.nics import find_nics
from epfabric_crds.node import Nic
from epfabric_crds.settings import NicSelector
from unit.nic.recorded import Recorded

WAIT_S = 30.0
CPUS = Cpus(tuple(range(32)), {cpu: cpu // 16 for cpu in range(32)})
CLAIM = Claim("jobs", "slots", "7f7ee7b0-0000-4000-8000-000000000001")


def nic(rail: int, numa: int, driver: str = "mlx5_core") -> Nic:
    return Nic(
        name=f"eth{rail}",
        rdma_device=f"mlx5_{rail}",
        driver=driver,
        pci_address=f"0000:0{rail}:00.0",
        numa_node=numa,
        rail=rail,
    )


def test_the_rails_of_a_real_node_have_their_roots(tmp_path: Path) -> None:
    recorded = Recorded("mlx5", tmp_path)
    nics = find_nics(recorded.machine)
    wanted = NicSelector(names=("enp26s0np0", "enp60s0np0"))
    found = rails_of("moe", nics, wanted, CPUS, 4, pcie_roots(recorded.machine, nics))
    told = {(r.nic, r.pci_address, r.pcie_root, r.numa, r.slots) for r in found}
    assert told == {
        ("enp26s0np0", "0000:1a:00.0", "pci0000:15", 0, 2),
        ("enp60s0np0", "0000:3c:00.0", "pci0000:37", 0, 2),
    }


def test_slots_are_the_near_cpus_by_the_proxies_of_a_session() -> None:
    nics = (nic(0, 0), nic(1, 0), nic(2, 1), nic(3, -1))
    found = rails_of("moe", nics, None, CPUS, 4, {})
    assert [rail.slots for rail in found] == [2, 2, 4, 8]
    (alone,) = rails_of("moe", (), None, CPUS, 4, {})
    assert (alone.name, alone.slots, alone.nic) == ("rail-0", 8, "")
    few = Cpus((0,), {0: 0})
    assert rails_of("moe", (nic(0, 1),), None, few, 4, {})[0].slots == 1


def test_devices_are_shared_or_one_a_slot() -> None:
    rail = Rail("rail-2", 2, "moe", 3, "eth2", "mlx5_core", "0000:02:00.0", "pci0000:00", 1)
    (shared,) = device(rail, multiple=True)
    assert shared["allowMultipleAllocations"] is True
    assert shared["capacity"]["slots"]["value"] == "3"
    single = device(rail, multiple=False)
    assert [found["name"] for found in single] == [f"rail-2-slot-{n}" for n in range(3)]
    assert all("capacity" not in found for found in single)
    root = {"string": "pci0000:00"}
    for found in (shared, *single):
        assert found["attributes"]["resource.kubernetes.io/pcieRoot"] == root


def test_a_slice_holds_no_more_devices_than_the_server_takes() -> None:
    rails = tuple(Rail(f"rail-{n}", n, "moe", 64) for n in range(8))
    made = slice_of("n", "u", rails, False, 1)
    assert len(made["spec"]["devices"]) == 128


def result(device: str, request: str = "slot", **more: Any) -> dict[str, Any]:
    common = {"driver": "slots.epfabric.io", "pool": "node-a"}
    return {"request": request, "device": device, **common, **more}


class Server:
    """Answers for one ResourceClaim; `asked` counts."""

    def __init__(self, *results: dict[str, Any], uid: str = CLAIM.uid) -> None:
        self.asked = 0
        self.body: dict[str, Any] | None = {
            "metadata": {"uid": uid},
            "status": {"allocation": {"devices": {"results": list(results)}}},
        }

    def read(self, namespace: str, name: str) -> dict[str, Any] | None:
        self.asked += 1
        return self.body


def claims(folder: Path, server: Server, boot: str = "boot-1") -> Claims:
    return Claims(folder / "state", folder / "cdi", "node-a", boot, server.read)


def cdi(folder: Path) -> dict[str, list[str]]:
    (path,) = (folder / "cdi").glob("*.json")
    body = json.loads(path.read_text())
    return {found["name"]: found["containerEdits"]["env"] for found in body["devices"]}


def test_a_claim_is_prepared_once_and_again_after_a_reboot(tmp_path: Path) -> None:
    server = Server(
        result("rail-0", shareID="s1"),
        result("rail-3-slot-1"),
        result("rail-5", "more/of-it"),
        {**result("gpu-0"), "driver": "gpu.example.com"},
        {**result("rail-7"), "pool": "node-b"},
    )
    first = claims(tmp_path, server).prepare(CLAIM)
    assert [(p.request, p.device, p.share) for p in first] == [
        ("slot", "rail-0", "s1"),
        ("slot", "rail-3-slot-1", ""),
        ("more/of-it", "rail-5", ""),
    ]
    assert cdi(tmp_path) == {
        f"{CLAIM.uid}_slot": ["EPFABRIC_RAILS=0,3"],
        f"{CLAIM.uid}_more-of-it": ["EPFABRIC_RAILS=5"],
    }
    assert claims(tmp_path, server).prepare(CLAIM) == first  # another process, the same boot
    assert server.asked == 1
    for path in (tmp_path / "cdi").iterdir():
        path.unlink()  # /var/run is gone after a reboot
    assert claims(tmp_path, server, "boot-2").prepare(CLAIM) == first
    assert cdi(tmp_path)
    assert server.asked == 2
    assert claims(tmp_path, server, "boot-3").prepare(CLAIM) == first  # a /var/run that stays
    assert server.asked == 3
    later = claims(tmp_path, server, "boot-2")
    for _ in range(2):
        later.unprepare(CLAIM)
        assert not list((tmp_path / "cdi").iterdir())
        assert not list((tmp_path / "state/claims").iterdir())


def test_a_half_written_preparation_is_done_again(tmp_path: Path) -> None:
    server = Server(result("rail-0"))
    made = claims(tmp_path, server)
    made.prepare(CLAIM)
    (record,) = (tmp_path / "state/claims").iterdir()
    record.write_text("{")
    assert made.prepare(CLAIM)
    next((tmp_path / "cdi").iterdir()).unlink()
    assert made.prepare(CLAIM)
    assert cdi(tmp_path)
    assert server.asked == 3


@pytest.mark.parametrize(
    ("server", "uid", "text"),
    [
        (Server(), CLAIM.uid, "has no slot of this node"),
        (Server(uid="other"), CLAIM.uid, "gone or another one"),
        (Server(), "../../etc", "is no uid"),
    ],
)
def test_a_claim_that_is_not_ours_is_told_so(
    tmp_path: Path, server: Server, uid: str, text: str
) -> None:
    with pytest.raises(ClaimError, match=text):
        claims(tmp_path, server).prepare(Claim("jobs", "slots", uid))
    assert not (tmp_path / "state").exists()


def test_one_bad_claim_does_not_spoil_the_others(tmp_path: Path) -> None:
    path = tmp_path / "dra.sock"
    service = DraService(claims(tmp_path, Server(result("rail-0"))))
    server = listen(path, lambda s: dra_pb2_grpc.add_DRAPluginServicer_to_server(service, s))
    good = dra_pb2.Claim(namespace="jobs", name="slots", uid=CLAIM.uid)
    bad = dra_pb2.Claim(namespace="jobs", name="slots", uid="..")
    with grpc.insecure_channel(f"unix:{path}") as channel:
        stub = dra_pb2_grpc.DRAPluginStub(channel)
        for _ in range(2):
            prepared = stub.NodePrepareResources(
                dra_pb2.NodePrepareResourcesRequest(claims=[good, bad]), timeout=WAIT_S
            ).claims
            assert [d.device_name for d in prepared[CLAIM.uid].devices] == ["rail-0"]
            assert "is no uid" in prepared[".."].error
        for _ in range(2):
            gone = stub.NodeUnprepareResources(
                dra_pb2.NodeUnprepareResourcesRequest(claims=[good, bad]), timeout=WAIT_S
            ).claims
            assert (gone[CLAIM.uid].error, set(gone)) == ("", {CLAIM.uid, ".."})
    server.stop(None).wait(WAIT_S)


class Kubelet(deviceplugin_pb2_grpc.RegistrationServicer):
    """The kubelet's end of registration."""

    def __init__(self, folder: Path) -> None:
        self.registered: list[str] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        deviceplugin_pb2_grpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{folder / 'kubelet.sock'}")
        self._server.start()

    def Register(
        self, request: deviceplugin_pb2.RegisterRequest, context: grpc.ServicerContext
    ) -> deviceplugin_pb2.Empty:
        self.registered.append(f"{request.version} {request.resource_name} {request.endpoint}")
        return deviceplugin_pb2.Empty()

    def stop(self) -> None:
        self._server.stop(None).wait(WAIT_S)


RAILS = (Rail("rail-0", 0, "moe", 2, numa=0), Rail("rail-1", 1, "moe", 2, numa=1))


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[tuple[PluginService, Registrar]]:
    service = PluginService()
    registrar = Registrar(tmp_path, service)
    yield service, registrar
    registrar.stop()


def test_the_plugin_registers_again_with_a_new_kubelet(
    tmp_path: Path, plugin: tuple[PluginService, Registrar]
) -> None:
    _, registrar = plugin
    registrar.look()  # no kubelet yet
    for _ in range(2):
        kubelet = Kubelet(tmp_path)
        for _ in range(3):
            registrar.look()
        assert kubelet.registered == ["v1beta1 epfabric.io/slot epfabric.sock"]
        kubelet.stop()
        for path in tmp_path.iterdir():
            path.unlink()  # what a kubelet does when it starts


def test_the_plugin_tells_changes_and_allocates(
    tmp_path: Path, plugin: tuple[PluginService, Registrar]
) -> None:
    service, registrar = plugin
    kubelet = Kubelet(tmp_path)
    registrar.look()
    with grpc.insecure_channel(f"unix:{tmp_path / 'epfabric.sock'}") as channel:
        stub = deviceplugin_pb2_grpc.DevicePluginStub(channel)
        stream = stub.ListAndWatch(deviceplugin_pb2.Empty(), timeout=WAIT_S)
        assert not next(stream).devices
        threading.Timer(0.1, service.use, (RAILS,)).start()
        told = next(stream).devices
        assert [found.ID for found in told] == [found.ID for found in devices(RAILS)]
        assert told[2].topology.nodes[0].ID == 1
        stream.cancel()
        asked = deviceplugin_pb2.ContainerAllocateRequest(
            devices_ids=["rail-1-slot-0", "rail-0-slot-1"]
        )
        answer = stub.Allocate(
            deviceplugin_pb2.AllocateRequest(container_requests=[asked]), timeout=WAIT_S
        )
        assert dict(answer.container_responses[0].envs) == {"EPFABRIC_RAILS": "0,1"}
    kubelet.stop()


def test_slots_are_spread_over_rails() -> None:
    ids = [found.ID for found in devices(RAILS)]
    assert spread(ids, [], 2) == ["rail-0-slot-0", "rail-1-slot-0"]
    assert spread(ids, ["rail-1-slot-1"], 2) == ["rail-1-slot-1", "rail-0-slot-0"]
    assert sorted(spread(ids, [], 9)) == sorted(ids)
