"""Makes one change of a NIC, confirms it or rolls it back, through the journal; for nic.duty.

Everything here blocks, for CONFIRM_S and a little more at most.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from epfabric_crds.settings import Nics

from epfabric_agent.nic.facts import Nic, Node
from epfabric_agent.nic.journal import Journal, Pending
from epfabric_agent.nic.plan import Change

CONFIRM_S = 30.0
STEADY_S = 1.0  # a link may go down a moment after the driver took the change
LOOK_S = 0.25
RETRY_S = 600.0
RETRY_CUT_OFF_S = 30.0
_log = logging.getLogger(__name__)


class Hands(Protocol):
    """See nic.knobs.Knobs."""

    def look(self, wanted: Nics, changed: Iterable[str]) -> Node: ...

    def write(self, nic: Nic, setting: str, value: str) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the boot."""

    def sleep(self, seconds: float) -> None: ...


class BootClock:
    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Changer:
    """`reachable` says why the API server cannot be reached; empty where it can, or where there
    is none to reach."""

    def __init__(
        self,
        hands: Hands,
        journal: Journal,
        reachable: Callable[[], str],
        clock: Clock,
        confirm_s: float = CONFIRM_S,
        steady_s: float = STEADY_S,
    ) -> None:
        self._hands = hands
        self._journal = journal
        self._reachable = reachable
        self._clock = clock
        self._confirm_s = confirm_s
        self._steady_s = steady_s

    def make(self, change: Change, node: Node) -> str:
        """Empty, or why the change was rolled back. Raises OSError where the journal cannot be
        written: then nothing was changed."""
        nic = node.by_key(change.key)
        if nic is None:
            raise RuntimeError(f"{change.nic} is not among the NICs that the plan was made of")
        link = node.link(nic)
        self._journal.begin(change, was_up=link is not None and link.up)
        _log.info("%s: %s %s -> %s", change.nic, change.setting, change.old, change.new)
        try:
            self._hands.write(nic, change.setting, change.new)
        except OSError as error:
            return self._roll_back(f"the NIC refuses it: {error}", RETRY_S)
        pending = self._journal.memory.pending
        assert pending is not None
        # What a link had before is known to do; an agent that ends has many NICs to restore.
        steady = change.disruptive and not change.restores
        wrong = self._confirm(pending, self._steady_s if steady else 0.0)
        if wrong:
            return self._roll_back(wrong, RETRY_S)
        self._journal.confirm(change.restores)
        return ""

    def settle(self) -> str:
        """Rolls back what an agent that was cut off left unconfirmed; empty if nothing was."""
        if self._journal.memory.pending is None:
            return ""
        return self._roll_back("the agent was cut off before it was confirmed", RETRY_CUT_OFF_S)

    def _confirm(self, pending: Pending, steady_s: float) -> str:
        begun = self._clock.now()
        good_since: float | None = None
        while True:
            wrong = self._wrong(pending)
            now = self._clock.now()
            good_since = None if wrong else now if good_since is None else good_since
            if good_since is not None and now - good_since >= steady_s:
                return ""
            if now - begun >= self._confirm_s:
                return f"{wrong or 'it was not steady'} {self._confirm_s:.0f} s after the change"
            self._clock.sleep(LOOK_S)

    def _wrong(self, pending: Pending) -> str:
        try:
            node = self._hands.look(Nics(), [pending.setting])
        except OSError as error:
            return str(error)
        nic = node.by_key(pending.key)
        if nic is None:
            return "the NIC was gone"
        link = node.link(nic)
        if pending.was_up and not (link and link.up):
            return "the link was not up"
        if nic.readings[pending.setting].value != pending.new:
            return f"{pending.setting} was {nic.readings[pending.setting].value}"
        unreachable = self._reachable()
        return f"the API server was not reachable ({unreachable})" if unreachable else ""

    def _roll_back(self, why: str, retry_s: float) -> str:
        """Leaves the change pending where it cannot be undone: the next turn tries again."""
        pending = self._journal.memory.pending
        assert pending is not None
        try:
            nic = self._hands.look(Nics(), [pending.setting]).by_key(pending.key)
            if nic is None:
                self._journal.drop()
                return f"{why}; the NIC is gone"
            if nic.readings[pending.setting].value != pending.old:
                self._hands.write(nic, pending.setting, pending.old)
                nic = self._hands.look(Nics(), [pending.setting]).by_key(pending.key)
                found = nic.readings[pending.setting].value if nic else None
                if found != pending.old:
                    raise OSError(f"{pending.setting} is {found}, not {pending.old}")
        except OSError as error:
            _log.error("%s: %s is not rolled back: %s", pending.key, pending.setting, error)
            at = f"{pending.setting} of {pending.key} to {pending.old}"
            return f"{why}; {at} could not be rolled back yet: {error}"
        reason = f"{why}; {pending.setting} was rolled back to {pending.old}"
        self._journal.undone(reason, self._clock.now() + retry_s)
        _log.warning("%s: %s", pending.key, reason)
        return reason
