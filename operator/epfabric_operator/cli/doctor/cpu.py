"""CPUs: the kubelet's CPU and topology managers, and what agents say of their proxies' cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from epfabric_crds import EPFabric
from epfabric_crds.fabric import AgentPool
from epfabric_crds.meta import find

from epfabric_operator.cli.doctor.facts import Facts, Finding, some

WHOLE_NUMA = frozenset({"single-numa-node", "restricted", "best-effort"})


def check(facts: Facts) -> Iterator[Finding]:
    yield from _policies(facts)
    for fabric in facts.fabrics:
        for pool in fabric.spec.agent.pools:
            yield from _pool(fabric, pool)
        if not fabric.spec.agent.pools:
            yield _no_pool(fabric)
    yield from _conditions(facts)


def _policies(facts: Facts) -> Iterator[Finding]:
    shared = [n for n, c in facts.kubelets.items() if c.get("cpuManagerPolicy", "none") != "static"]
    if shared:
        yield Finding(
            "warning",
            "cpu-manager-policy",
            some(sorted(shared)),
            "the kubelet's cpuManagerPolicy is not static",
            "proxies share their cores with other pods: latency rises whenever those run",
            "set cpuManagerPolicy: static and reservedSystemCPUs, drain the node, remove"
            " /var/lib/kubelet/cpu_manager_state, restart the kubelet; give the pool whole CPUs",
        )
    numa = {
        n.metadata.name: n.status.topology.numa_nodes for n in facts.epnodes if n.status.topology
    }
    torn = [
        name
        for name, config in facts.kubelets.items()
        if name not in shared
        and (numa.get(name) or 1) > 1
        and config.get("topologyManagerPolicy", "none") not in WHOLE_NUMA
    ]
    if torn:
        yield Finding(
            "info",
            "topology-manager-policy",
            some(sorted(torn)),
            "several NUMA nodes, and the kubelet's topologyManagerPolicy is none",
            "a rank's CPUs, its GPU and its NIC may lie on different NUMA nodes",
            "set topologyManagerPolicy: best-effort or single-numa-node",
        )


def _no_pool(fabric: EPFabric) -> Finding:
    return Finding(
        "info",
        "agents-without-cpus",
        fabric.metadata.name,
        "spec.agent.pools is empty: agents ask for little, and for no whole CPUs",
        "the scheduler gives their cores away to others",
        "name a pool with whole CPUs (4 a GPU and one) and memory, requests equal to limits",
    )


def _pool(fabric: EPFabric, pool: AgentPool) -> Iterator[Finding]:
    requests: Mapping[str, str] = pool.resources.requests if pool.resources else {}
    limits: Mapping[str, str] = pool.resources.limits if pool.resources else {}
    cpu = str(limits.get("cpu", ""))
    equal = all(
        limits.get(kind) and requests.get(kind, limits[kind]) == limits[kind]
        for kind in ("cpu", "memory")
    )
    if not equal or not cpu.isdigit():
        yield Finding(
            "warning",
            "agents-without-cpus",
            f"{fabric.metadata.name} pool {pool.name}",
            f"requests {dict(requests)} and limits {dict(limits)} give no exclusive CPUs",
            "the static CPU manager gives cores only to pods with whole CPUs, requests = limits",
            "set cpu to a whole number and memory, in limits and alike in requests",
        )


def _conditions(facts: Facts) -> Iterator[Finding]:
    for type_, bad, check_name, why in (
        (
            "CPUConstrained",
            "True",
            "too-few-cpus",
            "fewer proxies than wanted: each serves more rings",
        ),
        ("ProxiesLocal", "False", "remote-proxies", "each command crosses between NUMA nodes"),
    ):
        for node in facts.epnodes:
            found = find(node.status.conditions, type_)
            if found is not None and found.status == bad:
                yield Finding(
                    "warning",
                    check_name,
                    node.metadata.name,
                    found.message,
                    why,
                    "give the agents' pool more CPUs, or lower spec.proxies.perGPU",
                )
