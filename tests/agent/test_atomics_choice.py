"""What two real agents over tcp make of `spec.atomics`, which only NICs can do by hardware."""

from __future__ import annotations

from typing import ClassVar

from agent.two_agents import WAIT_S, TwoAgents, says, two_agents
from harness.process import Processes

FAILED = 3
WHY = "rank 0's agent does not use verbs"


class ByHardware(TwoAgents):
    spec: ClassVar[dict[str, str]] = {"atomics": "hardware"}


def test_atomics_by_hardware_are_refused_with_the_reason_and_not_emulated() -> None:
    with Processes("epfabric-atomics-") as processes:
        for rank in ByHardware(processes).ranks():
            assert rank.wait(WAIT_S) == FAILED, rank.tail()
            assert f"spec.atomics is hardware, but {WHY}: set it to auto" in rank.tail()


def test_agents_say_why_they_emulate_atomics() -> None:
    with two_agents() as pair:
        for rank in pair.ranks():
            assert rank.wait(WAIT_S) == 0, rank.tail()
        for agent in pair.agents.values():
            assert says(agent, f"atomics are emulated: {WHY}"), agent.tail()
