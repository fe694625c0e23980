"""Expands a description of a real node's NICs (nodes/*.txt) into a tree of sysfs and its network.

A line is one fact; what follows from the kernel's layout (links between class and devices,
driver, physfn) is made from it. Used by the tests beside it.
"""

from __future__ import annotations

from pathlib import Path

from epfabric_agent.nic.facts import Link, Network, Route
from epfabric_agent.nic.knobs import Knobs
from epfabric_agent.topology.machine import Machine

NODES = Path(__file__).with_name("nodes")


class Recorded:
    def __init__(self, name: str, root: Path) -> None:
        self.machine = Machine(root, lambda: frozenset({0}), dict)
        self._sys = root / "sys"
        (self._sys / "kernel/config/rdma_cm").mkdir(parents=True)
        self._links: dict[int, Link] = {}
        self._routes: list[Route] = []
        self._node = ""
        for line in (NODES / f"{name}.txt").read_text().splitlines():
            if line and not line.startswith("#"):
                kind, _, rest = line.partition(" ")
                getattr(self, f"_{kind}_line")(rest)

    @property
    def network(self) -> Network:
        return Network(self._links, tuple(self._routes), node_address=self._node)

    @property
    def knobs(self) -> Knobs:
        return Knobs(self.machine, self._node, tuple)

    def read(self, path: str) -> str:
        return (self._sys / path).read_text().strip()

    def _pci_line(self, rest: str) -> None:
        pci, *words = rest.split()
        facts = dict(zip(words[::2], words[1::2], strict=True))
        folder = self._sys / "devices" / facts["under"] / pci
        self._put(folder / "numa_node", facts["numa"])
        self._point(folder / "driver", self._sys / "bus/pci/drivers" / facts["driver"])
        self._point(self._sys / "bus/pci/devices" / pci, folder)
        if "physfn" in facts:
            self._point(folder / "physfn", folder.with_name(facts["physfn"]))
        for at, under in (("net", "net"), ("ib", "infiniband")):
            if at in facts:
                own = folder / under / facts[at]
                self._point(own / "device", folder)
                self._point(self._sys / "class" / under / facts[at], own)

    def _link_line(self, rest: str) -> None:
        index, name, *words = rest.split()
        facts = dict(zip(words[::2], words[1::2], strict=True))
        self._links[int(index)] = Link(
            name=name,
            index=int(index),
            mtu=int(facts["mtu"]),
            kind=facts.get("kind", ""),
            master=int(facts.get("master", 0)),
            parent=int(facts.get("parent", 0)),
            min_mtu=int(facts.get("min", 0)),
            max_mtu=int(facts.get("max", 0)),
            up=True,
            addresses=tuple(filter(None, facts.get("addr", "").split(","))),
        )

    def _default_line(self, rest: str) -> None:
        self._routes.append(Route(int(rest), default=True))

    def _node_line(self, rest: str) -> None:
        self._node = rest

    def _cma_line(self, rest: str) -> None:
        device, _, rest = rest.partition(" mode ")
        mode, _, tos = rest.partition(" tos ")
        folder = self._sys / "kernel/config/rdma_cm" / device / "ports/1"
        self._put(folder / "default_roce_mode", mode)
        self._put(folder / "default_roce_tos", tos)

    def _ecn_line(self, rest: str) -> None:
        name, _, np, _, rp = rest.split()
        for role, bits in (("roce_np", np), ("roce_rp", rp)):
            for priority, bit in enumerate(bits):
                path = self._sys / "class/net" / name / "ecn" / role / "enable" / str(priority)
                self._put(path, bit)

    def _file_line(self, rest: str) -> None:
        path, _, content = rest.partition(" =")
        self._put(self._sys / path, content.strip())

    def _put(self, path: Path, content: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")

    def _point(self, path: Path, target: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
