"""NIC configuration without Kubernetes: for manifest.mode and the command `epfabric-agent nics`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from epfabric_crds.settings import Nics

from epfabric_agent.csi import records
from epfabric_agent.nic.change import BootClock, Changer
from epfabric_agent.nic.duty import Happening, NicDuty, Surroundings
from epfabric_agent.nic.journal import Journal
from epfabric_agent.nic.knobs import Knobs
from epfabric_agent.topology.machine import Machine

_log = logging.getLogger(__name__)


def duty(
    state_dir: Path,
    node_address: str,
    sessions: Callable[[], int],
    quiet: Callable[[], AbstractAsyncContextManager[bool]],
    machine: Machine | None = None,
) -> NicDuty:
    """Without an API server a change is confirmed by the NIC alone."""
    journal = Journal(state_dir, records.boot_id())
    knobs = Knobs(machine or Machine(), node_address, tuple)
    clock = BootClock()
    around = Surroundings(
        sessions=sessions,
        quiet=quiet,
        read_only=str,
        reachable=str,
        tell=_say,
    )
    return NicDuty(knobs, journal, Changer(knobs, journal, str, clock), clock, around)


async def restore(state_dir: Path) -> bool:
    """Brings back what an agent changed; nobody else may run in `state_dir`. False: not all.

    Raises OSError where what they had cannot be read.
    """
    made = duty(state_dir, "", lambda: 0, _alone)
    if made.broken:
        raise OSError(made.broken)
    found = await made.turn(Nics())
    for nic in found.nics:
        for setting in nic.settings:
            text = f"{nic.name}: {setting.name} is {setting.actual}, was {setting.wanted}"
            print(f"{text}: {setting.message or setting.state}")
    for key, name, value in made.changed:
        print(f"{key}: {name} is not back at {value} yet, or the NIC is not here")
    if made.idle:
        print("the NICs are as they were before the fabric")
    return made.idle


@asynccontextmanager
async def _alone() -> AsyncIterator[bool]:
    yield True


def _say(happening: Happening) -> None:
    (_log.warning if happening.warning else _log.info)("%s: %s", happening.reason, happening.note)
