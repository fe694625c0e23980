"""Which NICs a session's proxies use: near its GPU, evenly, and none that would not be reached."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from epfabric_agent.session.nic_turns import NicTurns, Turn
from epfabric_agent.topology.cpus import Cpus
from epfabric_agent.topology.discover import Inventory
from epfabric_agent.topology.machine import Machine
from epfabric_agent.topology.near import Place, order_nics, place_of
from epfabric_agent.topology.rdma import RdmaPort
from epfabric_crds.node import Gpu, Nic, Topology


@dataclass
class Node:
    """A machine's PCI tree: each switch has its GPUs and NICs below a root port of its own."""

    root: Path
    gpus: list[Gpu] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    down: list[str] = field(default_factory=list)

    def switch(self, number: int, gpus: int, nics: int, numa: int | None) -> None:
        bus = self.root / "sys/bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        above = f"devices/pci0000:{number:02x}/0000:{number:02x}:01.0/0000:{number + 64:02x}:00.0"
        for place in range(gpus + nics):
            pci = f"0000:{number + 128:02x}:{place:02x}.0"
            (self.root / "sys" / above / pci).mkdir(parents=True)
            (bus / pci).symlink_to(Path("../../..") / above / pci)
            if place < gpus:
                self.gpus.append(Gpu(uuid=f"{len(self.gpus)}", pci_address=pci, numa_node=numa))
            else:
                name = f"rdma{len(self.nics)}"
                self.nics.append(Nic(name=name, rdma_device=name, pci_address=pci, numa_node=numa))

    @property
    def ports(self) -> tuple[tuple[str, int, str], ...]:
        return tuple((nic.name, 1, "") for nic in self.nics)

    def turns(self) -> NicTurns:
        def found() -> Inventory:
            topology = Topology(gpus=tuple(self.gpus), nics=tuple(self.nics))
            names = [nic.name for nic in self.nics]
            ports = tuple(RdmaPort(name, 1, name not in self.down, ()) for name in names)
            return Inventory(Cpus((), {}), topology, ports)

        return NicTurns(Machine(root=self.root), found)

    def used(self, turn: Turn) -> list[int]:
        return sorted(turn.order[: turn.used])


def test_each_of_eight_gpus_has_the_nic_of_its_switch_and_another_one_stands_by(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    for number in range(8):
        node.switch(number, gpus=1, nics=1, numa=number // 4)
    turns = node.turns()
    for number, gpu in enumerate(node.gpus):
        turn = turns.take(node.ports, gpu, proxies=4, lines=1)
        assert (turn.order[0], turn.used) == (number, 1)
        assert turn.order[1] // 4 == number // 4  # of the same NUMA node
        assert sorted(turn.order) == list(range(8))


def test_each_of_eight_gpus_has_four_of_32_efa_devices(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in range(8):
        node.switch(number, gpus=1, nics=4, numa=number // 4)
    turns = node.turns()
    for number, gpu in enumerate(node.gpus):
        turn = turns.take(node.ports, gpu, proxies=4, lines=0)
        assert node.used(turn) == list(range(4 * number, 4 * number + 4))


@pytest.mark.parametrize("gpus", [0, 8])
@pytest.mark.parametrize(("nics", "proxies"), [(32, 4), (8, 4), (8, 1), (3, 2), (2, 4), (1, 4)])
def test_where_nothing_is_near_ranks_share_all_nics_evenly(
    tmp_path: Path, gpus: int, nics: int, proxies: int
) -> None:
    """CPU ranks, or a machine that does not tell where things are."""
    node = Node(tmp_path, [Gpu(uuid=f"{n}") for n in range(gpus)])
    node.nics = [Nic(name=f"rdma{n}", rdma_device=f"rdma{n}") for n in range(nics)]
    turns, of_each = node.turns(), Counter[int]()
    for rank in range(8):
        turn = turns.take(node.ports, node.gpus[rank] if gpus else None, proxies, lines=1)
        of_each.update(turn.order[proxy % turn.used] for proxy in range(proxies))
    shares = [of_each[nic] for nic in range(nics)]
    assert sum(shares) == 8 * proxies
    assert max(shares) - min(shares) <= 1


def test_gpus_of_a_numa_node_share_its_nics_where_no_switch_is_known(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.gpus = [Gpu(uuid=f"{n}", numa_node=n // 4) for n in range(8)]
    node.nics = [Nic(name=f"r{n}", rdma_device=f"r{n}", numa_node=n % 2) for n in range(8)]
    turns = node.turns()
    for number, gpu in enumerate(node.gpus):
        assert {nic % 2 for nic in node.used(turns.take(node.ports, gpu, 2, 1))} == {number // 4}


def test_the_next_nearest_serve_where_the_nic_of_the_switch_is_not_used(tmp_path: Path) -> None:
    """It is down, so that the core has no port of it."""
    node = Node(tmp_path)
    for number in range(4):
        node.switch(number, gpus=1, nics=1, numa=number // 2)
    turn = node.turns().take(node.ports[1:], node.gpus[0], proxies=4, lines=1)
    assert (turn.order[0], turn.used) == (0, 1)  # of those that there are, the one on its NUMA node


def test_a_nic_that_went_down_stands_by_until_it_is_up(tmp_path: Path) -> None:
    """The core has its port still: other sessions live. A new one could not open it."""
    node = Node(tmp_path)
    for number in range(2):
        node.switch(number, gpus=1, nics=1, numa=0)
    turns, gpu = node.turns(), node.gpus[0]
    node.down = [node.nics[0].name]
    turn = turns.take(node.ports, gpu, proxies=4, lines=1)
    assert (turn.order, turn.used) == ((1, 0), 1)
    node.down = []
    assert turns.take(node.ports, gpu, proxies=4, lines=1).order == (0, 1)


def test_proxies_that_stripe_have_as_many_nics_as_they_want_however_far(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in range(4):
        node.switch(number, gpus=1, nics=1, numa=number // 2)
    turn = node.turns().take(node.ports, node.gpus[3], proxies=4, lines=2)
    assert (turn.order[:2], turn.used) == ((3, 2), 2)


def test_what_a_session_gives_back_is_there_for_the_next_and_counts_once(tmp_path: Path) -> None:
    node = Node(tmp_path, nics=[Nic(name=n, rdma_device=n) for n in "abcd"])
    turns = node.turns()
    first = turns.take(node.ports, None, proxies=2, lines=1)
    second = turns.take(node.ports, None, proxies=2, lines=1)
    assert (node.used(first), node.used(second)) == ([0, 1], [2, 3])
    for _ in range(2):
        first.give_back()
    turns.take(node.ports, None, proxies=2, lines=1)
    assert node.used(turns.take(node.ports, None, proxies=4, lines=1)) == [0, 1, 2, 3]
    assert node.used(turns.take(node.ports, None, proxies=1, lines=1)) == [0]


def test_where_the_core_has_no_choice_a_session_has_no_order_of_its_own(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.switch(0, gpus=1, nics=2, numa=0)
    turn = node.turns().take((), node.gpus[0], proxies=4, lines=1)
    assert (turn.order, turn.used) == ((), 0)
    turn.give_back()


def test_a_device_that_is_not_in_sysfs_is_nowhere(tmp_path: Path) -> None:
    machine = Machine(root=tmp_path)
    assert place_of(machine, "0000:01:00.0", -1) == Place((), None)
    assert place_of(machine, None, 1) == Place((), 1)
    assert order_nics([Place(), Place((), 1)], Place((), 1), [0, 0], [False] * 2, 4, 1) == (
        (1, 0),
        1,
    )
