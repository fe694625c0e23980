"""What this node has, as one value; the agent looks again now and then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from epfabric_crds.node import Nic, Topology

from epfabric_agent.topology.cpus import Cpus
from epfabric_agent.topology.gpus import find_gpus
from epfabric_agent.topology.machine import Machine
from epfabric_agent.topology.nics import find_nics
from epfabric_agent.topology.numa import find_cpus, numa_nodes
from epfabric_agent.topology.rdma import RdmaPort, find_ports


@dataclass(frozen=True)
class Inventory:
    cpus: Cpus
    topology: Topology
    rdma_ports: tuple[RdmaPort, ...]


def discover(machine: Machine) -> Inventory:
    """Never raises for what a machine lacks. Blocks for some milliseconds: call it off the loop."""
    cpus = find_cpus(machine)
    topology = Topology(
        numa_nodes=len(numa_nodes(machine)),
        cpus=cpus.text()[:1024],
        gpus=find_gpus(machine),
        nics=find_nics(machine),
    )
    return Inventory(cpus, topology, with_nics(find_ports(), topology.nics))


def with_nics(ports: Iterable[RdmaPort], nics: Iterable[Nic]) -> tuple[RdmaPort, ...]:
    """The ports with what the NICs of their devices tell; one without an interface has no other."""
    nic_of = {nic.rdma_device: nic for nic in nics if nic.rdma_device}
    return tuple(
        replace(port, interface=nic.name != port.device, driver=nic.driver or "")
        if (nic := nic_of.get(port.device))
        else port
        for port in ports
    )
