"""What status says of nodes and fabrics; pure, called by reconcile.py.

Conditions follow kstatus: Reconciling and Stalled are True only while they hold, Ready is True
only when everything that can be up is up. Nodes that Kubernetes reports as not ready are counted
apart and degrade nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from epfabric_crds import Condition, EPFabric, EPFabricNode, EPFabricStatus
from epfabric_crds.fabric import EPFabricSpec, FailingNode, NodeCounts, TransportCount
from epfabric_crds.meta import ConditionStatus, find, keep_transition
from epfabric_crds.names import LEASE_SECONDS

from epfabric_operator.assignment import Assignment, pool_of
from epfabric_operator.world import World

MOST_NAMES = 10
MOST_TRANSPORTS = 16
STARTING = frozenset({"AgentMissing", "AgentStarting"})


@dataclass(frozen=True)
class Verdict:
    """A condition before it has a time."""

    status: ConditionStatus
    reason: str
    message: str

    def at(self, type_: str, now: str, generation: int | None) -> Condition:
        return Condition(
            type=type_,
            status=self.status,
            reason=self.reason,
            message=self.message[:1024],
            last_transition_time=now,
            observed_generation=generation,
        )


def node_verdict(epnode: EPFabricNode | None, lease_age_s: float | None) -> Verdict:
    """Whether pods can use this node's agent."""
    transport = find(epnode.status.conditions, "TransportReady") if epnode else None
    silent = lease_age_s is not None and lease_age_s > LEASE_SECONDS
    # An old Lease of a node that reports nothing is an earlier fabric's.
    if epnode is None or lease_age_s is None or (silent and transport is None):
        return Verdict(
            "False",
            "AgentMissing",
            "no agent has reported from this node yet; look at its pod of the DaemonSet",
        )
    if silent:
        return Verdict(
            "Unknown",
            "AgentSilent",
            f"the agent has not renewed its Lease for more than {LEASE_SECONDS} s",
        )
    if transport is None:
        return Verdict("False", "AgentStarting", "the agent has not chosen a transport yet")
    if transport.status != "True":
        return Verdict("False", transport.reason, transport.message)
    return Verdict("True", "AgentReady", "the agent serves pods")


def unsupported(spec: EPFabricSpec) -> list[str]:
    """What the API defines and this version's agents do not do."""
    if spec.barrier.algorithm == "dissemination":
        return ["barrier.algorithm dissemination (use leader)"]
    return []


def fabric_status(
    fabric: EPFabric,
    assignment: Assignment,
    world: World,
    verdicts: Mapping[str, Verdict],
    failure: str | None,
    now: str,
) -> EPFabricStatus:
    """Status of a fabric. `verdicts` by node, `failure` is what the last reconcile could not do."""
    up = [n for n, v in verdicts.items() if v.status == "True"]
    down = [n for n, v in verdicts.items() if v.status != "True" and n in world.down]
    failing = [n for n, v in verdicts.items() if v.status != "True" and n not in world.down]
    counts = NodeCounts(
        selected=assignment.selected,
        assigned=len(assignment.mine),
        contested=len(assignment.contested),
        not_ready=len(down),
        ready=len(up),
        failing=len(failing),
    )
    epnodes = [world.epnodes[node.name] for node in assignment.mine if node.name in world.epnodes]
    found = {
        **_health(fabric, assignment, counts, {n: verdicts[n] for n in failing}, failure),
        **_observed(epnodes),
        "PolicyOverlap": _overlap(assignment.contested),
    }
    old = fabric.status.conditions
    generation = fabric.metadata.generation
    conditions = (keep_transition(v.at(t, now, generation), old) for t, v in found.items())
    return EPFabricStatus(
        observed_generation=generation,
        nodes=counts,
        failing=tuple(
            FailingNode(
                node=n,
                reason=verdicts[n].reason,
                message=_hint(fabric, assignment, n) or verdicts[n].message[:512],
            )
            for n in failing[:MOST_NAMES]
        ),
        transports=_transports(epnodes),
        sessions=sum(e.status.sessions or 0 for e in epnodes),
        conditions=tuple(conditions),
    )


def _hint(fabric: EPFabric, assignment: Assignment, name: str) -> str | None:
    node = next(n for n in assignment.mine if n.name == name)
    if fabric.spec.agent.pools and pool_of(fabric, node) is None:
        return "the node matches no pool of spec.agent.pools, so that it gets no agent"
    return None


def _health(
    fabric: EPFabric,
    assignment: Assignment,
    counts: NodeCounts,
    failing: Mapping[str, Verdict],
    failure: str | None,
) -> dict[str, Verdict]:
    missing = unsupported(fabric.spec)
    starting = [n for n, v in failing.items() if v.reason in STARTING]
    broken = {n: v for n, v in failing.items() if v.reason not in STARTING}
    expected = counts.assigned - counts.not_ready
    some = f"{counts.ready} of {expected} agents are ready"
    if failing:
        name, verdict = next(iter(broken.items()), next(iter(failing.items())))
        some += f"; {name}: {verdict.message}"
    agents = Verdict(
        "False" if failing else "True", "AgentsFailing" if failing else "AgentsReady", some
    )
    stalled = Verdict("False", "Progressing", "nothing is in the way")
    if missing:
        text = f"this version does not do: {', '.join(missing)}"
        stalled = Verdict("True", "NotSupported", text)
    elif failure:
        stalled = Verdict("True", "Refused", failure)
    ready = agents if failing else Verdict("True", "Ready", some)
    if stalled.status == "True":
        ready = Verdict("False", stalled.reason, stalled.message)
    elif not counts.assigned:
        ready = _no_nodes(assignment)
    elif not expected:
        ready = Verdict("False", "NodesNotReady", f"all {counts.not_ready} nodes are not ready")
    return {
        "Ready": ready,
        "Reconciling": Verdict("True", "AgentsStarting", f"waiting for {list_of(starting)}")
        if starting
        else Verdict("False", "Done", "the cluster is as spec wants it"),
        "Stalled": stalled,
        "AgentsReady": agents if expected else Verdict("False", "NoNodes", "no node is ready"),
        "Degraded": Verdict("True", "AgentsFailing", f"not usable: {list_of(broken)}")
        if broken
        else Verdict("False", "AgentsReady", "no agent that had started fails"),
    }


def _no_nodes(assignment: Assignment) -> Verdict:
    if assignment.contested:
        text = f"every selected node belongs to another fabric: {_owners(assignment.contested)}"
        return Verdict("False", "PolicyOverlap", text)
    text = "no node matches spec.nodeSelector; label nodes, or change the selector"
    return Verdict("False", "NoNodes", text)


def _overlap(contested: Mapping[str, str]) -> Verdict:
    if not contested:
        return Verdict("False", "NoOverlap", "no selected node belongs to another fabric")
    text = (
        f"{len(contested)} selected nodes belong to another fabric and stay there: "
        f"{_owners(contested)}; change one of the node selectors"
    )
    return Verdict("True", "NodesContested", text)


def _observed(epnodes: Iterable[EPFabricNode]) -> dict[str, Verdict]:
    """Conditions of agents, summed up: `bad` is the status that is worth a look."""
    out = {}
    epnodes = list(epnodes)
    for type_, bad in (
        ("ProxiesLocal", "False"),
        ("NICsConfigured", "False"),
        ("CPUConstrained", "True"),
    ):
        seen = [(e.metadata.name, c) for e in epnodes if (c := find(e.status.conditions, type_))]
        wrong = [(name, c) for name, c in seen if c.status == bad]
        if wrong:
            text = f"{list_of([n for n, _ in wrong])}: {wrong[0][1].message}"
            status: ConditionStatus = "True" if bad == "True" else "False"
            out[type_] = Verdict(status, wrong[0][1].reason, text)
        elif seen:
            status = "False" if bad == "True" else "True"
            out[type_] = Verdict(status, "AllNodes", f"so on all {len(seen)} nodes that report it")
    return out


def _transports(epnodes: Iterable[EPFabricNode]) -> tuple[TransportCount, ...]:
    counter = Counter(
        f"{t.type}/{t.provider}" if t.provider else t.type
        for e in epnodes
        if (t := e.status.transport) and t.type
    )
    return tuple(
        TransportCount(type=name[:64], nodes=n) for name, n in counter.most_common(MOST_TRANSPORTS)
    )


def _owners(contested: Mapping[str, str]) -> str:
    return list_of([f"{node} ({owner})" for node, owner in sorted(contested.items())])


def list_of(texts: Iterable[str]) -> str:
    """At most ten of them."""
    texts = list(texts)
    more = len(texts) - MOST_NAMES
    return ", ".join(texts[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
