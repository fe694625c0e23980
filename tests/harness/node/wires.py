"""The network of a site: a bridge that joins nodes and this machine; for `harness.node.site`.

The bridge lies in a network namespace of its own, as each node does. A link whose other end lies
in a namespace goes with that namespace, so nothing of this outlives the site's processes.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from harness.process import HarnessError, Processes, wait_until

FIRST, LAST = 200, 250  # a site has the addresses 10.N.0.0/16 for one N of these
START_S = 20.0


@dataclass(frozen=True)
class Plan:
    """The addresses of the site with the number `number`; pure."""

    number: int

    @property
    def link(self) -> str:
        return f"epf-site-{self.number}"

    @property
    def all(self) -> str:
        return f"10.{self.number}.0.0/16"

    @property
    def host(self) -> str:
        """This machine's address on the bridge."""
        return f"10.{self.number}.0.1"

    @property
    def services(self) -> str:
        return f"10.{self.number}.255.0/24"

    @property
    def api(self) -> str:
        """The API server listens on its own service's address, so no proxy has to lead there."""
        return f"10.{self.number}.255.1"

    def node(self, index: int) -> str:
        return f"10.{self.number}.0.{11 + index}"

    def pods(self, index: int) -> str:
        return f"10.{self.number}.{index + 1}.0/24"


class Wires:
    """`connect` joins a node, again after each of its reboots."""

    def __init__(self, processes: Processes, nodes: int) -> None:
        self.nodes = nodes
        self._switch = processes.start("switch", ["unshare", "--net", "sleep", "infinity"])
        wait_until(lambda: in_own_network(self._switch.pid), START_S, "the switch", self._switch)
        self.plan = claim(self._switch.pid)
        plan = self.plan
        routes = [f"route add {plan.pods(index)} via {plan.node(index)}" for index in range(nodes)]
        self._in_switch(
            "link add name wire type bridge", "link set host master wire", "link set wire up",
            "link set host up",
        )  # fmt: skip
        ip(
            f"link set {plan.link} up",
            f"addr add {plan.host}/24 dev {plan.link}",
            f"addr add {plan.api}/32 dev {plan.link}",
            *routes,
        )

    def connect(self, index: int, pid: int) -> None:
        """Gives the node that holds `pid` its link, addresses and routes."""
        plan, name = self.plan, f"node-{index}"
        self._in_switch(
            f"link add name {name} type veth peer name eth0 netns {pid}",
            f"link set {name} master wire up",
        )
        others = [
            f"route add {plan.pods(other)} via {plan.node(other)}"
            for other in range(self.nodes)
            if other != index
        ]
        ip(
            "link set lo up",
            "link set eth0 up",
            f"addr add {plan.node(index)}/24 dev eth0",
            f"route add default via {plan.host}",
            *others,
            pid=pid,
        )

    def _in_switch(self, *lines: str) -> None:
        ip(*lines, pid=self._switch.pid)


def claim(switch: int) -> Plan:
    """The first site whose link and addresses nobody has; making the link takes it."""
    for number in range(FIRST, LAST):
        plan = Plan(number)
        if routes_within(plan.all):
            continue
        add = f"link add name {plan.link} type veth peer name host netns {switch}"
        done = run_ip([add])
        if done.returncode == 0:
            return plan
        if "exists" not in done.stderr:
            raise HarnessError(f"no link for the nodes' network: {done.stderr.strip()}")
    raise HarnessError(f"the networks 10.{FIRST} to 10.{LAST - 1} are all in use")


def routes_within(network: str) -> list[object]:
    shown = subprocess.run(
        ["ip", "-json", "route", "show", "root", network],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found: list[object] = json.loads(shown or "[]")
    return found


def in_own_network(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def ip(*lines: str, pid: int | None = None) -> None:
    """Runs commands of ip(8), in the network of `pid` if one is given."""
    done = run_ip(lines, pid)
    if done.returncode != 0:
        raise HarnessError(f"ip: {done.stderr.strip()}, in {list(lines)}")


def run_ip(lines: Sequence[str], pid: int | None = None) -> subprocess.CompletedProcess[str]:
    enter = [] if pid is None else ["nsenter", f"--net=/proc/{pid}/ns/net"]
    return subprocess.run(
        [*enter, "ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True
    )
