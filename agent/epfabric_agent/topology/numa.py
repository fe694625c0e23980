"""NUMA nodes and the CPUs that this process may really use; for topology.discover.

What counts is the intersection of what is online, the process's affinity and the cpuset of its
control group, in version 1 or 2, of the innermost group that says one.
"""

from __future__ import annotations

import re
from pathlib import Path

from epfabric_agent.topology.cpus import Cpus, parse_cpus, usable
from epfabric_agent.topology.machine import Machine, names, text

_NODE = re.compile(r"node(\d+)")


def find_cpus(machine: Machine) -> Cpus:
    numa_of: dict[int, int] = {}
    distances: dict[tuple[int, int], int] = {}
    nodes = numa_nodes(machine)
    for node in nodes:
        folder = _nodes(machine) / f"node{node}"
        numa_of |= dict.fromkeys(parse_cpus(text(folder / "cpulist")), node)
        row = text(folder / "distance").split()
        if len(row) == len(nodes) and all(d.isdecimal() for d in row):
            distances |= {(node, other): int(d) for other, d in zip(nodes, row, strict=True)}
    online = parse_cpus(text(machine.sys / "devices/system/cpu/online"))
    sets = (online, machine.affinity(), cgroup_cpus(machine))
    return Cpus(usable(sets), numa_of, distances)


def numa_nodes(machine: Machine) -> tuple[int, ...]:
    """Their numbers; one node 0 on machines that do not say."""
    found = [int(m[1]) for name in names(_nodes(machine)) if (m := _NODE.fullmatch(name))]
    return tuple(sorted(found)) or (0,)


def cgroup_cpus(machine: Machine) -> tuple[int, ...]:
    """The CPUs of this process's control group; empty where none says."""
    for line in text(machine.proc / "self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mount = machine.sys / "fs/cgroup"
        if controllers == "":
            found = _innermost(mount, path, ("cpuset.cpus.effective",))
        elif "cpuset" in controllers.split(","):
            files = ("cpuset.effective_cpus", "cpuset.cpus")
            found = _innermost(mount / "cpuset", path, files)
        else:
            continue
        if found:
            return found
    return ()


def _innermost(mount: Path, path: str, files: tuple[str, ...]) -> tuple[int, ...]:
    """Inside a container the group's path may not exist: then its parents do, up to the mount."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        for file in files:
            found = parse_cpus(text(mount.joinpath(*parts[:length], file)))
            if found:
                return found
    return ()


def _nodes(machine: Machine) -> Path:
    return machine.sys / "devices/system/node"
