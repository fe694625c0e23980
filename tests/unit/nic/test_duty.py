"""The duty over NICs and drivers that misbehave: nothing ends the agent, no value is forgotten."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from epfabric_agent.kube.mode import KubeMode
from epfabric_agent.kube.nics import at_the_end
from epfabric_agent.nic.duty import Happening
from epfabric_agent.nic.facts import Link, Network, Nic, Node, Reading
from epfabric_agent.nic.journal import Journal
from epfabric_crds.settings import Nics, NicSelector
from unit.nic.clock import StepClock
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


async def test_a_journal_that_cannot_be_read_keeps_the_nics_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "nics.json").write_text('{"version": 9}')
    hands = Pair()
    for wanted in (JUMBO, Nics()):
        found = await duty_on(hands, tmp_path, []).turn(wanted)
        assert (found.holds, found.reason) == (False, "Failed")
        assert "version 9 is not 1" in found.message
    assert not hands.writes


class Quiet(Pair):
    """Both take all."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck = False


async def test_a_setting_that_is_back_already_is_not_to_be_restored(tmp_path: Path) -> None:
    hands = Quiet()
    duty = duty_on(hands, tmp_path, [])
    assert (await duty.turn(JUMBO)).holds
    hands.value = hands.other = "1500"
    found = await duty.turn(replace(JUMBO, mode="Observe"))
    assert duty.idle
    assert (found.holds, found.reason) == (False, "Differs")


async def test_two_that_set_one_nic_do_not_fight_for_ever(tmp_path: Path) -> None:
    hands, told, clock = Quiet(), list[Happening](), StepClock()
    duty = duty_on(hands, tmp_path, told, clock=clock)
    for _ in range(50):
        await duty.turn(JUMBO)
        hands.value = "1500"
        clock.sleep(60.0)
    assert sum(h.reason == "NICDrifted" for h in told) == 3
    found = await duty.turn(JUMBO)
    assert found.reason == "Failed"
    assert "something else changed it 3 times within an hour" in found.message
    assert (await duty.turn(replace(JUMBO, mtu=8000))).holds  # another wish is tried at once


class Rails:
    """Eight NICs of three settings each."""

    def __init__(self) -> None:
        first = {"mtu": "1500", "trust": "pcp", "pfc": "0,0,0,0,0,0,0,0"}
        self.values = {f"eth{i}": dict(first) for i in range(8)}

    def look(self, wanted: object, changed: object) -> Node:
        nics = tuple(
            Nic(name, i + 1, readings={k: Reading(v) for k, v in values.items()})
            for i, (name, values) in enumerate(self.values.items())
        )
        links = {n.index: Link(n.name, n.index, int(self.values[n.name]["mtu"])) for n in nics}
        return Node(nics, Network(links))

    def write(self, nic: Nic, setting: str, value: str) -> None:
        self.values[nic.name][setting] = value


async def test_many_nics_are_restored_in_the_time_that_an_agent_has(tmp_path: Path) -> None:
    hands, clock = Rails(), StepClock()
    before = {name: dict(values) for name, values in hands.values.items()}
    duty = duty_on(hands, tmp_path, [], clock=clock)
    assert (await duty.turn(replace(JUMBO, trust="dscp", pfc="0,0,0,1,0,0,0,0"))).holds
    begun = clock.now()
    await duty.turn(Nics())
    assert hands.values == before
    assert duty.idle
    assert clock.now() - begun < 12.0


async def test_who_ends_the_duty_waits_for_the_change_that_is_being_made(tmp_path: Path) -> None:
    hands, begun, go = Quiet(), threading.Event(), threading.Event()

    def slowly() -> str:
        if hands.value == "9000":
            begun.set()
            assert go.wait(10.0)
        return ""

    duty = duty_on(hands, tmp_path, [], slowly)
    turn = asyncio.create_task(duty.turn(JUMBO))
    assert await asyncio.to_thread(begun.wait, 10.0)
    turn.cancel()
    last = asyncio.create_task(duty.turn(Nics()))
    await asyncio.sleep(0.05)
    assert not turn.done()
    go.set()
    await last
    assert turn.cancelled()
    assert (hands.value, hands.other, duty.idle) == ("1500", "1500", True)


def test_an_agent_that_ends_restores_what_the_next_one_may_not() -> None:
    observed = replace(JUMBO, mode="Observe")
    assert at_the_end(observed, lambda: False) == observed
    assert at_the_end(JUMBO, lambda: False) is None
    assert at_the_end(None, lambda: False) is None
    assert at_the_end(JUMBO, lambda: True) == Nics()


class Ending:
    """Stands for KubeMode's parts and notes their order."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.watch = self.runtime = self.nics = self
        self._wanted = None

    def stop(self) -> None:
        self.order.append("watch")

    async def close(self) -> None:
        self.order.append("sessions")
        raise OSError("a session that does not end")

    async def leave(self, wanted: object) -> None:
        self.order.append("nics")


async def test_nics_are_restored_when_the_sessions_have_ended() -> None:
    ending = Ending()
    with pytest.raises(OSError, match="does not end"):
        await KubeMode.end(ending)  # type: ignore[arg-type]
    assert ending.order == ["watch", "sessions", "nics"]
