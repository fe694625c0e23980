"""A node in a namespace, with the agent's NIC duty on it; for the tests beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from epfabric_agent.nic.change import BootClock, Changer
from epfabric_agent.nic.duty import Happening, NicDuty, Surroundings
from epfabric_agent.nic.journal import Journal
from epfabric_agent.nic.knobs import Knobs
from epfabric_agent.nic.report import NicReport
from epfabric_agent.topology.machine import Machine
from epfabric_crds.settings import Nics
from harness.netns import Namespace

NODE_ADDRESS = "192.0.2.10"
API = "198.51.100.1"


class Site:
    """`sessions`, `unreachable` and `others` are what the duty is told when it asks."""

    def __init__(self, ns: Namespace, folder: Path, root: Path | None = None) -> None:
        self.ns = ns
        self.folder = folder
        self.sessions = 0
        self.others = ""
        self.reach: Callable[[], str] = str
        self.told: list[Happening] = []
        self.boot = "boot-1"
        self.confirm_s = 30.0
        self._machine = Machine(root or folder / "no-sysfs")

    def turn(self, wanted: Nics) -> NicReport:
        """One turn of an agent that has just started."""
        return self.ns.run(lambda: self.duty().turn(wanted))

    def duty(self) -> NicDuty:
        journal = Journal(self.folder, self.boot)
        knobs = Knobs(self._machine, NODE_ADDRESS, lambda: (API,))
        clock = BootClock()
        around = Surroundings(
            sessions=lambda: self.sessions,
            quiet=self._quiet,
            read_only=lambda: self.others,
            reachable=lambda: self.reach(),
            tell=self.told.append,
        )
        changer = Changer(knobs, journal, lambda: self.reach(), clock, self.confirm_s, 0.05)
        return NicDuty(knobs, journal, changer, clock, around)

    @property
    def journal(self) -> Journal:
        return Journal(self.folder, self.boot)

    @asynccontextmanager
    async def _quiet(self) -> AsyncIterator[bool]:
        yield not self.sessions

    def reasons(self) -> list[str]:
        return [happening.reason for happening in self.told]


def state(report: NicReport, nic: str, setting: str = "mtu") -> str:
    for found in report.nics:
        for one in found.settings if found.name == nic else ():
            if one.name == setting:
                return f"{one.state}: {one.message}" if one.message else one.state
    return ""
