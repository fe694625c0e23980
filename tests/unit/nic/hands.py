"""NICs that behave as no driver at hand does, and a duty on them; for the tests beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from epfabric_agent.nic.change import Changer, Hands
from epfabric_agent.nic.duty import Happening, NicDuty, Surroundings
from epfabric_agent.nic.facts import Link, Network, Nic, Node, Reading
from epfabric_agent.nic.journal import Journal
from unit.nic.clock import StepClock, alone


class Stubborn:
    """A NIC that takes a value and does not give it back: no driver at hand does that."""

    def __init__(self) -> None:
        self.value = "1500"
        self.stuck = True

    def look(self, wanted: object, changed: object) -> Node:
        nic = Nic("eth0", 1, readings={"mtu": Reading(self.value)})
        return Node((nic,), Network({1: Link("eth0", 1, int(self.value), up=True)}))

    def write(self, nic: Nic, setting: str, value: str) -> None:
        if self.stuck and value == "1500":
            raise OSError("device busy")
        self.value = value


def duty_on(
    hands: Hands,
    folder: Path,
    told: list[Happening],
    reachable: Callable[[], str] = str,
    clock: StepClock | None = None,
) -> NicDuty:
    journal = Journal(folder, "boot")
    clock = clock or StepClock()
    around = Surroundings(lambda: 0, alone, str, str, told.append)
    return NicDuty(hands, journal, Changer(hands, journal, reachable, clock), clock, around)
