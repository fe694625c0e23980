"""What this node has, as one value; the agent looks again now and then."""

from __future__ import annotations

from dataclasses import dataclass

from epfabric_crds.node import Topology

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
    return Inventory(cpus, topology, find_ports())
