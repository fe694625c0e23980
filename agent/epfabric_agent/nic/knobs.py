"""Reads the node's NICs with their settings and writes one setting: the edge of nic.duty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from epfabric_crds.settings import Nics

from epfabric_agent.nic import dcb, links
from epfabric_agent.nic.facts import Network, Nic, Node, Reading
from epfabric_agent.nic.files import FileKnobs
from epfabric_agent.nic.find import find
from epfabric_agent.topology.machine import Machine

_NO_LINK = Reading(None, "it has no network interface")


class Knobs:
    """`api_addresses` are IP addresses on the way to the API server; see Network.unknown."""

    def __init__(
        self,
        machine: Machine,
        node_address: str,
        api_addresses: Callable[[], Iterable[str]],
    ) -> None:
        self._machine = machine
        self._node_address = node_address
        self._api_addresses = api_addresses
        self._files = FileKnobs(machine)

    def look(self, wanted: Nics, changed: Iterable[str]) -> Node:
        """Settings are read of what `wanted` speaks of, and those named `changed`. OSError."""
        try:
            network = links.read(self._node_address, self._api_addresses())
        except OSError as error:
            network = replace(links.read(self._node_address, ()), unknown=str(error))
        return self.of(network, wanted, changed)

    def of(self, network: Network, wanted: Nics, changed: Iterable[str]) -> Node:
        asked = set(changed)
        asked |= {
            setting
            for setting, value in (
                ("mtu", wanted.mtu),
                ("roceMode", wanted.roce_mode),
                ("trust", wanted.trust),
                ("tos", wanted.tos),
                ("pfc", wanted.pfc),
                ("ecn", wanted.ecn),
            )
            if value is not None
        }
        found = find(self._machine, network)
        nics = (replace(nic, readings=self._read(nic, network, asked)) for nic in found)
        return Node(tuple(nics), network)

    def write(self, nic: Nic, setting: str, value: str) -> None:
        """Raises OSError."""
        if setting == "mtu":
            links.write_mtu(nic.index, int(value))
        elif setting == "roceMode":
            self._files.write_roce_mode(nic, value)
        elif setting == "tos":
            self._files.write_tos(nic, value)
        elif setting == "ecn":
            self._files.write_ecn(nic, value)
        elif setting == "pfc":
            dcb.change(dcb.IEEE_SET, nic.name, dcb.pfc_attribute(value, dcb.ask(nic.name)))
        else:
            gone, come = dcb.trust_changes(dcb.trust_of(dcb.ask(nic.name)), value)
            for cmd, entries in ((dcb.IEEE_DEL, gone), (dcb.IEEE_SET, come)):
                if entries:
                    dcb.change(cmd, nic.name, dcb.trust_attribute(entries))

    def _read(self, nic: Nic, network: Network, asked: set[str]) -> Mapping[str, Reading]:
        readings = {}
        if "mtu" in asked:
            link = network.links.get(nic.index)
            readings["mtu"] = Reading(str(link.mtu)) if link else _NO_LINK
        for setting, read in (
            ("roceMode", self._files.read_roce_mode),
            ("tos", self._files.read_tos),
            ("ecn", self._files.read_ecn),
        ):
            if setting in asked:
                readings[setting] = read(nic)
        if asked & {"trust", "pfc"}:
            readings |= {k: v for k, v in _bridging(nic).items() if k in asked}
        return readings


def _bridging(nic: Nic) -> dict[str, Reading]:
    if not nic.index:
        return {"trust": _NO_LINK, "pfc": _NO_LINK}
    try:
        answer = dcb.ask(nic.name)
        bits, trust = dcb.pfc_of(answer), dcb.trust_of(answer)
    except dcb.DcbError as error:
        why = "its driver has no data center bridging" if dcb.unsupported(error) else str(error)
        none = Reading(None, why)
        return {"trust": none, "pfc": none}
    pfc = Reading(bits, "" if bits else "its driver has no priority flow control")
    return {"trust": Reading(trust), "pfc": pfc}
