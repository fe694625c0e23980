"""The duty over NICs and drivers that misbehave: nothing ends the agent, no value is forgotten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from epfabric_agent.nic.duty import Happening
from epfabric_agent.nic.facts import Link, Nic, Node, Reading
from epfabric_agent.nic.journal import Journal
from epfabric_crds.settings import Nics, NicSelector
from unit.nic.hands import Stubborn, duty_on

JUMBO = Nics(mode="Configure", mtu=9000, selector=NicSelector(names=("eth*",)))


class Surprising(Stubborn):
    """Its driver answers what nobody understands."""

    def look(self, wanted: object, changed: object) -> Node:
        raise ValueError("zip() argument 2 is shorter than argument 1")


async def test_an_answer_that_nobody_understands_does_not_end_the_agent(tmp_path: Path) -> None:
    duty = duty_on(Surprising(), tmp_path, [])
    for _ in range(2):
        found = await duty.turn(JUMBO)
        assert (found.holds, found.reason) == (False, "Failed")
        assert "zip() argument 2 is shorter" in found.message


class Pair(Stubborn):
    """eth0 as its base; eth1 takes all."""

    def __init__(self) -> None:
        super().__init__()
        self.other = "1500"
        self.writes: list[str] = []

    def look(self, wanted: object, changed: object) -> Node:
        found = super().look(wanted, changed)
        nic = Nic("eth1", 2, readings={"mtu": Reading(self.other)})
        links = {**found.network.links, 2: Link("eth1", 2, int(self.other), up=True)}
        return Node((*found.nics, nic), replace(found.network, links=links))

    def write(self, nic: Nic, setting: str, value: str) -> None:
        self.writes.append(nic.name)
        if nic.name == "eth1":
            self.other = value
        else:
            super().write(nic, setting, value)


async def test_what_could_not_be_rolled_back_is_not_forgotten_for_the_next(tmp_path: Path) -> None:
    hands, told = Pair(), list[Happening]()
    duty = duty_on(hands, tmp_path, told, lambda: "gone" if hands.value == "9000" else "")
    for _ in range(4):
        found = await duty.turn(JUMBO)
        assert (found.holds, found.reason) == (False, "Failed")
        assert "mtu of eth0 to 1500 could not be rolled back yet: device busy" in found.message
    pending = Journal(tmp_path, "boot").memory.pending
    assert pending is not None
    assert (pending.key, pending.old) == ("eth0", "1500")
    assert hands.writes == ["eth0"] * len(hands.writes)
    assert len(told) == 2  # when it was made, and when an agent found it
    hands.stuck = False
    found = await duty.turn(JUMBO)
    assert (hands.value, hands.other) == ("1500", "9000")
    assert "mtu was rolled back to 1500" in found.message
    memory = Journal(tmp_path, "boot").memory
    assert (memory.pending, memory.originals) == (None, {("eth1", "mtu"): "1500"})
