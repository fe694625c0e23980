"""Which NIC settings to change now, and what holds back the others: a pure decision, for nic.duty.

Changes are made one at a time and planned anew after each, so a VLAN's MTU may follow its parent's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from epfabric_crds.node import NicState
from epfabric_crds.settings import Nics

from epfabric_agent.nic.facts import DISRUPTIVE, SETTINGS, Nic, Node
from epfabric_agent.nic.journal import Memory, Setting
from epfabric_agent.nic.protect import protected
from epfabric_agent.nic.selector import selects
from epfabric_agent.nic.targets import short, target

State = NicState
MEMBER_MASTERS = frozenset({"bond", "team"})


@dataclass(frozen=True)
class Change:
    """`old` and `new` in the form of nic.targets; `restores`: back to what was found at first."""

    nic: str
    key: str
    setting: str
    old: str
    new: str
    reason: str
    disruptive: bool
    restores: bool


@dataclass(frozen=True)
class Finding:
    """How one setting of one NIC stands; `actual` is empty where it cannot be read."""

    nic: str
    setting: str
    state: NicState
    wanted: str
    actual: str
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    changes: tuple[Change, ...] = ()
    findings: tuple[Finding, ...] = ()
    nics: tuple[str, ...] = ()
    """Those that the selector means, by name."""
    returned: tuple[Setting, ...] = ()
    """To be restored, and as they were before already."""


@dataclass(frozen=True)
class Situation:
    """What beside NICs and manifest decides: `sessions` of the node, `read_only` with its reason,
    `unconfirmable` (why a change could not be confirmed now), `now_s` since the boot."""

    sessions: int = 0
    read_only: str = ""
    unconfirmable: str = ""
    now_s: float = 0.0


@dataclass(frozen=True)
class _Planner:
    wanted: Nics
    node: Node
    memory: Memory
    situation: Situation
    closed: dict[int, str]
    changes: list[Change] = field(default_factory=list)
    returned: list[Setting] = field(default_factory=list)

    def findings(self, nic: Nic, selected: bool) -> Iterator[Finding]:
        configure = selected and self.wanted.mode == "Configure"
        for setting in SETTINGS:
            key = self.node.key(nic)
            reading = nic.readings.get(setting)
            if reading is None:
                continue
            first = self.memory.originals.get((key, setting))
            current = reading.value
            goal = target(setting, self.wanted, current or "") if selected else None
            restores = (goal is None or not configure) and first is not None
            if restores:
                goal = first
            if goal is None:
                continue
            shown = (short(setting, goal), short(setting, current or ""))
            if current is None:
                yield Finding(nic.name, setting, "Unsupported", shown[0], "", reading.reason)
            elif current == goal:
                if restores:
                    self.returned.append((key, setting))
                yield Finding(nic.name, setting, "AsWanted", *shown)
            elif not configure and not restores:
                text = "nics.mode is Observe: nothing is changed"
                yield Finding(nic.name, setting, "Differs", *shown, text)
            else:
                change = Change(
                    nic=nic.name,
                    key=key,
                    setting=setting,
                    old=current,
                    new=goal,
                    reason="as it was before the fabric" if restores else f"spec.nics.{setting}",
                    disruptive=setting in DISRUPTIVE,
                    restores=restores,
                )
                yield self._judge(nic, change, shown)

    def _judge(self, nic: Nic, change: Change, shown: tuple[str, str]) -> Finding:
        state: NicState = "Waiting"
        failure = self.memory.failures.get((change.key, change.setting))
        if self.situation.read_only:
            state, reason = "Differs", self.situation.read_only
        elif why := self._forbidden(nic, change):
            state, reason = "Refused", why
        elif failure and failure.new == change.new and self.situation.now_s < failure.again_s:
            state, reason = "Failed", failure.reason
        elif self.situation.unconfirmable:
            reason = self.situation.unconfirmable
        elif change.disruptive and self.situation.sessions:
            reason = f"waits until the node's {self.situation.sessions} session(s) have ended"
        else:
            self.changes.append(change)
            reason = "is being changed"
        return Finding(change.nic, change.setting, state, *shown, reason)

    def _forbidden(self, nic: Nic, change: Change) -> str:
        if self.node.network.unknown:
            return f"what the node needs to be reached is not known: {self.node.network.unknown}"
        if nic.index in self.closed:
            return f"{self.closed[nic.index]}: set it up outside of the fabric"
        return self._mtu_fits(nic, int(change.new)) if change.setting == "mtu" else ""

    def _mtu_fits(self, nic: Nic, mtu: int) -> str:
        links = self.node.network.links
        link = links[nic.index]
        least, most = link.min_mtu, link.max_mtu
        if mtu < least or (most and mtu > most):
            return f"the driver takes an MTU from {least} to {most}"
        master = links.get(link.master)
        if master is not None and master.kind in MEMBER_MASTERS:
            return f"it is a member of {master.name}, which sets its MTU: select that by name"
        parent = links.get(link.parent)
        if link.kind == "vlan" and parent is not None and parent.mtu < mtu:
            return f"{parent.name} below it has MTU {parent.mtu}: select that too, by name"
        for other in links.values():
            if other.kind == "vlan" and other.parent == link.index and other.mtu > mtu:
                return f"the VLAN {other.name} on it has MTU {other.mtu}: lower that first"
            if other.master == link.index and link.kind == "bond" and other.mtu != link.mtu:
                return f"its member {other.name} has another MTU, {other.mtu}: make them equal"
        return ""


def plan(wanted: Nics, node: Node, memory: Memory, situation: Situation) -> Plan:
    """`wanted` of a fabric that has left is Nics(): then only what was changed is restored."""
    planner = _Planner(wanted, node, memory, situation, protected(node))
    findings: list[Finding] = []
    chosen = []
    for nic in node.nics:
        selected = selects(wanted.selector, nic)
        if selected:
            chosen.append(nic.name)
        findings += planner.findings(nic, selected)
    changes, returned = tuple(planner.changes), tuple(planner.returned)
    return Plan(changes, tuple(findings), tuple(chosen), returned)
