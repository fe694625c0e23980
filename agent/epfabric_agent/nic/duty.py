"""Keeps the node's NICs as the manifest wants them; a turn at start, at each change, now and then.

Used by kube.mode, manifest.mode and `epfabric-agent nics`. Decisions are nic.plan's, what is
written to the node is nic.change's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from epfabric_crds.settings import Nics

from epfabric_agent.nic.change import Changer, Clock, Hands
from epfabric_agent.nic.facts import Node
from epfabric_agent.nic.journal import Failure, Journal
from epfabric_agent.nic.plan import Change, Plan, Situation, plan
from epfabric_agent.nic.report import NicReport, report, wanted_any

MOST_CHANGES = 1024
MOST_DRIFTS = 3
DRIFT_S = 3600.0
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Happening:
    """For an Event and the log."""

    warning: bool
    reason: str
    note: str


@dataclass(frozen=True)
class Surroundings:
    """What a turn asks of the agent. `sessions` counts the node's; `quiet` holds new ones back and
    gives False if there are some; `read_only` says who else configures the NICs; `reachable` see
    Changer; `tell` gets what happened."""

    sessions: Callable[[], int]
    quiet: Callable[[], AbstractAsyncContextManager[bool]]
    read_only: Callable[[], str]
    reachable: Callable[[], str]
    tell: Callable[[Happening], None]


class NicDuty:
    def __init__(
        self, hands: Hands, journal: Journal, changer: Changer, clock: Clock, around: Surroundings
    ) -> None:
        self._hands = hands
        self._journal = journal
        self._changer = changer
        self._clock = clock
        self._around = around
        self._one = asyncio.Lock()
        self._told: set[tuple[str, str, str]] = set()
        self._drifts: dict[tuple[str, str, str], list[float]] = {}
        self._stuck = ""
        self._surprise = ""

    @property
    def idle(self) -> bool:
        """Nothing was changed that is not as it was before."""
        memory = self._journal.memory
        return memory.pending is None and not memory.originals and not self._journal.broken

    @property
    def broken(self) -> str:
        """Why the journal cannot be read: nothing is changed then."""
        return self._journal.broken

    @property
    def changed(self) -> tuple[tuple[str, str, str], ...]:
        """NIC, setting and its value from before, of what is to be restored some time."""
        return tuple((*at, value) for at, value in sorted(self._journal.memory.originals.items()))

    async def turn(self, wanted: Nics) -> NicReport:
        """Raises OSError where links or the journal cannot be read or written.

        What else a driver's answer may cause is told: it must not end the agent.
        """
        async with self._one:
            try:
                return await self._turn(wanted)
            except OSError:
                raise
            except Exception as error:
                text = f"the NICs are left as they are: {error!r}"
                if text != self._surprise:
                    _log.exception("the NICs are left as they are")
                self._surprise = text
                return NicReport((), False, "Failed", text)

    async def _turn(self, wanted: Nics) -> NicReport:
        if why := await _to_its_end(asyncio.to_thread(self._changer.settle)):
            self._tell_unmade(why)
        if self._journal.memory.pending is None:
            self._stuck = ""
            if self.idle and not wanted_any(wanted):
                return NicReport()
            made = await self._bring(wanted)
            if self._journal.memory.pending is None:
                self._tell_refusals(made)
                found = report(wanted, made)
                if self.broken:
                    return replace(found, holds=False, reason="Failed", message=self.broken)
                return found
        # Nothing else is changed before this is undone: the journal holds one such value.
        return NicReport((), False, "Failed", self._stuck)

    def _tell_unmade(self, why: str) -> None:
        """What cannot be rolled back is tried at each turn and told once."""
        pending = self._journal.memory.pending
        if pending is None or self._stuck != why:
            self._around.tell(Happening(True, "NICRolledBack", why))
        self._stuck = why if pending is not None else ""

    async def _bring(self, wanted: Nics) -> Plan:
        made = Plan()
        read_only = ""
        if wanted.mode == "Configure" or not self.idle:
            read_only = self.broken or await asyncio.to_thread(self._around.read_only)
        for _ in range(MOST_CHANGES):
            node = await asyncio.to_thread(self._look, wanted)
            made = self._plan(wanted, node, read_only, "")
            if made.returned:
                self._journal.forget(made.returned)
                continue
            if not made.changes:
                break
            if unreachable := await asyncio.to_thread(self._around.reachable):
                text = f"waits for the API server, to be confirmed by: {unreachable}"
                made = self._plan(wanted, node, read_only, text)
                break
            change = made.changes[0]
            if not change.disruptive:
                await self._make(change, node)
            else:
                async with self._around.quiet() as free:
                    if free:
                        await self._make(change, node)
            if self._journal.memory.pending is not None:
                break
        return made

    def _look(self, wanted: Nics) -> Node:
        memory = self._journal.memory
        node = self._hands.look(wanted, {setting for _, setting in memory.originals})
        self._journal.keep_only({node.key(nic) for nic in node.nics})
        return node

    def _plan(self, wanted: Nics, node: Node, read_only: str, unconfirmable: str) -> Plan:
        situation = Situation(self._around.sessions(), read_only, unconfirmable, self._clock.now())
        return plan(wanted, node, self._journal.memory, situation)

    async def _make(self, change: Change, node: Node) -> None:
        drifted = not change.restores and (change.key, change.setting) in (
            self._journal.memory.originals
        )
        wrong = await _to_its_end(asyncio.to_thread(self._changer.make, change, node))
        what = f"{change.nic}: {change.setting} from {change.old} to {change.new}"
        if wrong:
            self._tell_unmade(f"{what}: {wrong}")
        elif drifted:
            note = f"{what}: something else had changed it, it was set again"
            self._around.tell(Happening(True, "NICDrifted", note))
            self._rest(change)
        elif change.restores:
            self._around.tell(Happening(False, "NICRestored", f"{what}: {change.reason}"))
        else:
            self._around.tell(Happening(False, "NICConfigured", f"{what} ({change.reason})"))

    def _rest(self, change: Change) -> None:
        """Something else sets it, too: no link goes up and down with every look for ever."""
        at, now = (change.key, change.setting), self._clock.now()
        recent = [s for s in self._drifts.get((*at, change.new), ()) if now - s < DRIFT_S]
        self._drifts[*at, change.new] = [*recent, now]
        if len(recent) + 1 >= MOST_DRIFTS:
            why = f"something else changed it {MOST_DRIFTS} times within an hour: find out what"
            self._journal.rest(at, Failure(change.new, f"{why}; tried again later", now + DRIFT_S))

    def _tell_refusals(self, made: Plan) -> None:
        """Once for each, until it holds no more."""
        refused = {(f.nic, f.setting, f.reason) for f in made.findings if f.state == "Refused"}
        for nic, setting, reason in sorted(refused - self._told):
            self._around.tell(Happening(True, "NICRefused", f"{nic}: {setting}: {reason}"))
        self._told = refused


async def _to_its_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Who cancels waits for it: its thread goes on anyway, and the journal holds one change."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
