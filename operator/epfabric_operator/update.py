"""Which agents are replaced now, which wait and for what; pure, used by the planner.

Agents without a group come first, `maxUnavailable` at a time; each is cordoned, and says that it
has seen that and still serves nobody, before its pod goes. Those of a group wait for its end or for
`deadline`, then go together. A new agent that does not start stops it all
(docs/decisions/011-update.md).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from epfabric_crds import EPFabric, EPFabricNode
from epfabric_crds.meta import find
from epfabric_crds.names import CORDON_ANNOTATION, LEASE_SECONDS

from epfabric_operator.assignment import pool_of
from epfabric_operator.conditions import Verdict, list_of, node_verdict
from epfabric_operator.world import AgentPod, NodeMeta, World

PENDING = "UpdatePending"
CORDON = "its agent waits to be replaced by a newer one"
MOST_GROUPS = 3


UP_TO_DATE = Verdict("False", "UpToDate", "every agent is as spec wants it")


@dataclass(frozen=True)
class Update:
    pending: Mapping[str, Verdict] = field(default_factory=dict)  # node → why it waits
    cordons: Mapping[str, str] = field(default_factory=dict)  # node → why, for spec.cordon
    replace: tuple[AgentPod, ...] = ()
    stopped: str = ""  # why no further node is touched
    summary: Verdict = UP_TO_DATE


@dataclass(frozen=True)
class Seat:
    """A node with an agent of an older template."""

    node: str
    pod: AgentPod
    epnode: EPFabricNode | None
    silent: bool  # its agent has spoken, and does so no more: what it last said may be old
    since: str  # RFC 3339, for nodes that wait for a group

    @property
    def groups(self) -> tuple[str, ...]:
        """What would end with the agent. What another pod's agent said counts no more."""
        if self.pod.trouble or self.epnode is None or not says(self.epnode, self.pod):
            return ()
        status = self.epnode.status
        return status.groups or ((f"sessions of node {self.node}",) if status.sessions else ())

    @property
    def ours(self) -> bool:
        return self.epnode is not None and self.epnode.spec.cordon == CORDON

    @property
    def acknowledged(self) -> bool:
        """The agent knows of a cordon and serves nobody, or has never said a word."""
        if self.epnode is None or not says(self.epnode, self.pod):
            return True
        seen = self.epnode.status.observed_generation or 0
        return bool(self.epnode.spec.cordon) and seen >= (self.epnode.metadata.generation or 0)


def says(epnode: EPFabricNode, pod: AgentPod) -> bool:
    """Whether the status is this pod's word; an agent that does not tell its pod is believed."""
    agent = epnode.status.agent
    return agent is None or agent.pod_uid is None or agent.pod_uid == pod.uid


def decide(
    fabric: EPFabric, nodes: Iterable[NodeMeta], world: World, now: datetime.datetime
) -> Update:
    """`nodes` are the fabric's. Level-triggered: nothing is remembered but what the API holds."""
    # Where an old pod goes while the new one is there already, the new one counts.
    pods = sorted(world.agents.pods, key=lambda pod: not pod.going)
    placed = {pod.node: pod for pod in pods}
    ours = [n.name for n in nodes if not fabric.spec.agent.pools or pool_of(fabric, n)]
    seats = [_seat(world, n, placed[n], now) for n in ours if n in placed and placed[n].outdated]
    if not seats:
        return Update()
    spec, busy = fabric.spec.update, [s for s in seats if s.groups and not s.pod.going]
    stopped = _trouble(placed, ours, world)
    if spec.paused or stopped:
        reason, why = ("Stopped", stopped) if stopped else ("Paused", "spec.update.paused is true")
        return Update(
            pending={s.node: _waits(s, reason, f"no agent is replaced: {why}") for s in busy},
            stopped=stopped,
            summary=_summary(seats, busy, reason, f"; no agent is replaced: {why}"),
        )
    late = _late(busy, spec.deadline_ms, now)
    waiting = [s for s in busy if s.node not in late]
    there = [n for n in ours if n not in world.down]
    away = [n for n in there if _away(n, placed.get(n), world)]
    rest = [s for s in seats if not s.groups and not s.pod.going and s.node not in world.down]
    broken = [s for s in rest if s.pod.trouble]
    idle = [s for s in rest if not s.pod.trouble and not s.silent]
    idle.sort(key=lambda s: (not s.ours, s.node))
    turn = idle[: max(0, spec.max_unavailable - len(away))]
    ready = [s for s in turn if s.acknowledged]
    overdue = [s for s in busy if s.node in late]
    return Update(
        pending={
            **{s.node: _waits(s, "GroupRunning", _next(s, spec.deadline)) for s in waiting},
            **{s.node: _waits(s, "DeadlinePassed", "it is replaced now") for s in overdue},
        },
        cordons={s.node: CORDON for s in (*busy, *turn, *(s for s in seats if s.pod.going))},
        replace=tuple(s.pod for s in (*broken, *overdue, *ready)) if world.agents.settled else (),
        summary=_summary(seats, waiting, _reason(seats, waiting), _hold_ups(away, rest)),
    )


def _reason(seats: list[Seat], waiting: list[Seat]) -> str:
    return "Replacing" if len(seats) > len(waiting) else "GroupRunning"


def _hold_ups(away: list[str], rest: list[Seat]) -> str:
    """What else keeps an update from going on, by node."""
    text = f"; waiting for the new agents of {list_of(away)}" if away else ""
    if silent := [s.node for s in rest if s.silent and not s.pod.trouble]:
        text += f"; silent agents wait until they speak or you delete their pods: {list_of(silent)}"
    return text


def running(nodes: Iterable[NodeMeta], world: World) -> tuple[str, ...]:
    """Groups that the agents of these nodes tell of."""
    found = [world.epnodes[node.name] for node in nodes if node.name in world.epnodes]
    named = {group for epnode in found for group in epnode.status.groups}
    unnamed = {
        f"sessions of node {e.metadata.name}"
        for e in found
        if e.status.sessions and not e.status.groups
    }
    return tuple(sorted(named | unnamed))


def pools_wait(update: Update, groups: tuple[str, ...]) -> Update:
    """While DaemonSets of earlier pools are kept, their pods come back as they were."""
    text = (
        f"spec.agent.pools has other DaemonSets now; the earlier ones stay until these groups have "
        f"ended, since their agents go with them: {list_of(groups)}"
    )
    return replace(update, replace=(), summary=Verdict("True", "PoolsWait", text))


def cordon_of(node: NodeMeta, update: Update) -> str | None:
    """spec.cordon of a node; an administrator's own comes first and is never taken away."""
    if node.cordon is not None:
        reason = f": {node.cordon}" if node.cordon else ""
        return f"an administrator has cordoned the node ({CORDON_ANNOTATION}){reason}"[:512]
    return update.cordons.get(node.name)


def _seat(world: World, node: str, pod: AgentPod, now: datetime.datetime) -> Seat:
    epnode = world.epnodes.get(node)
    before = find(epnode.status.conditions, PENDING) if epnode else None
    age = world.lease_ages_s.get(node)
    silent = epnode is not None and says(epnode, pod) and (age is None or age > LEASE_SECONDS)
    text = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    since = before.last_transition_time if before and before.status == "True" else text
    return Seat(node, pod, epnode, silent, since)


def _up(node: str, pod: AgentPod, world: World) -> bool:
    epnode = world.epnodes.get(node)
    verdict = node_verdict(epnode, world.lease_ages_s.get(node))
    return epnode is not None and says(epnode, pod) and verdict.status == "True"


def _away(node: str, pod: AgentPod | None, world: World) -> bool:
    """Whether this node takes one of `maxUnavailable`: its new agent is not there yet."""
    if pod is None or pod.going:
        return True
    if pod.outdated or _up(node, pod, world):
        return False
    epnode = world.epnodes.get(node)
    before = find(epnode.status.conditions, "Ready") if epnode else None
    was_ready = before is None or before.status == "True"
    # A node that was not ready before it got its new agent holds nobody up.
    return was_ready or before is None or before.last_transition_time >= pod.created


def _trouble(placed: Mapping[str, AgentPod], nodes: Iterable[str], world: World) -> str:
    for node in nodes:
        pod = placed.get(node)
        if not pod or pod.outdated or pod.going or node in world.down:
            continue
        trouble = pod.trouble
        if pod.restless and not _up(node, pod, world):
            trouble = trouble or "its container ends again and again"
        if trouble:
            return (
                f"the new agent of node {node} does not start ({trouble}): look at pod "
                f"{pod.name} and its log, then set back what was changed, or repair it"
            )
    return ""


def _late(busy: Iterable[Seat], deadline_ms: int | None, now: datetime.datetime) -> set[str]:
    """Nodes whose time is over, and all that share a group with one of them, and so on."""
    if deadline_ms is None:
        return set()
    most, seats = datetime.timedelta(milliseconds=deadline_ms), list(busy)
    late = {s.node for s in seats if now - datetime.datetime.fromisoformat(s.since) >= most}
    while True:
        ending = {group for s in seats if s.node in late for group in s.groups}
        more = {s.node for s in seats if ending.intersection(s.groups)} - late
        if not more:
            return late
        late |= more


def _waits(seat: Seat, reason: str, text: str) -> Verdict:
    return Verdict("True", reason, f"since {seat.since} a newer agent waits: {text}")


def _next(seat: Seat, deadline: str | None) -> str:
    names = ", ".join(seat.groups[:MOST_GROUPS])
    more = len(seat.groups) - MOST_GROUPS
    names += f" and {more} more" if more > 0 else ""
    if deadline:
        return (
            f"{names} runs here; the agent is replaced when it has ended, at the latest "
            f"{deadline} after that time, with all nodes of the group"
        )
    return (
        f"{names} runs here; the agent is replaced when it has ended. To have it sooner end the "
        "group, or set spec.update.deadline"
    )


def _summary(seats: list[Seat], waiting: list[Seat], reason: str, more: str) -> Verdict:
    text = f"{len(seats)} agents are older than spec wants"
    if waiting:
        groups = sorted({group for s in waiting for group in s.groups})
        text += f"; {len(waiting)} of them serve groups that run: {list_of(groups)}"
    rest = len(seats) - len(waiting)
    if rest and reason == "Replacing":
        text += f"; {rest} are being replaced or wait for their turn"
    return Verdict("True", reason, text + more)
