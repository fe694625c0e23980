"""Which CPUs the proxies of all sessions run on, while what the agent may use changes.

Made by the agent's runtime; sessions take CPUs here. Before Linux 6.2 every change of a cpuset
undoes the pinning of all threads in it, so that each look pins them all anew.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable

from epfabric_agent.groups.local_rank import LocalRank
from epfabric_agent.topology.cpus import CpuLedger, Cpus
from epfabric_agent.topology.machine import Machine
from epfabric_agent.topology.numa import find_cpus

_log = logging.getLogger(__name__)


class ProxyCpus:
    def __init__(
        self,
        machine: Machine,
        ranks: Callable[[], Iterable[LocalRank]],
        changed: Callable[[], None],
    ) -> None:
        """`ranks`: all that are here. `changed` is called when a proxy was moved."""
        self._machine = machine
        self._ranks = ranks
        self._changed = changed
        self._numbers = itertools.count(1)
        self._said = ""
        self._looking = asyncio.Lock()
        self.usable = Cpus((), {})
        self.ledger = CpuLedger()

    def take(self, wanted: int, strict: bool, numa: int | None = None) -> int:
        """Gives a session's proxies CPUs; by this number, which no other session ever has.

        `numa`: the node that they are to be on; None: the one with the most room.
        """
        number = next(self._numbers)
        self.ledger.take(number, wanted, self.usable, numa, strict)
        self._tell()
        return number

    async def look(self) -> None:
        """Finds out what may be used now, and moves proxies that may not stay where they are."""
        async with self._looking:
            self.usable = await asyncio.to_thread(find_cpus, self._machine)
            before = {rank: self.ledger.cpus_of(rank.sample) for rank in self._ranks()}
            self.ledger.follow(self.usable)
            await asyncio.to_thread(self._pin, list(before))
            self._tell()
            if any(self.ledger.cpus_of(rank.sample) != cpus for rank, cpus in before.items()):
                self._changed()

    async def settle(self, rank: LocalRank) -> None:
        """Moves the proxies of a session that was opened, since looks meanwhile saw none."""
        async with self._looking:
            await asyncio.to_thread(self._pin, [rank])

    def _pin(self, ranks: Iterable[LocalRank]) -> None:
        from epfabric_agent._native import NativeError

        for rank in ranks:
            native, cpus = rank.native, self.ledger.cpus_of(rank.sample)
            try:
                if native is not None:
                    native.move(list(cpus))
            except NativeError as error:  # it changed again
                _log.warning("a proxy of rank %d stays for now: %s", rank.rank, error)

    def _tell(self) -> None:
        """Where it is not as it should be, or is again; without Kubernetes only the log says it."""
        owned = Cpus(tuple(sorted(self.ledger.taken())), {}).text() or "none"
        said = (
            f"CPUConstrained={self.ledger.constrained}, ProxiesLocal={self.ledger.local}: of CPUs "
            f"{self.usable.text()} proxies own {owned}"
        )
        if said != self._said:
            bad = self.ledger.constrained or not self.ledger.local
            _log.log(logging.WARNING if bad else logging.INFO, "%s", said)
        self._said = said
