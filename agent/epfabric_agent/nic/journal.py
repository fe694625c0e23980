"""What was changed on the node's NICs, on disk, so that it can be undone; for nic.duty.

It speaks of one boot: every setting here is a run-time one, and a reboot brings back what the
system itself sets. A change is written down before it is made; whatever is still pending when an
agent starts is rolled back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epfabric_agent import durable
from epfabric_agent.nic.facts import is_pci

if TYPE_CHECKING:
    from epfabric_agent.nic.plan import Change

NAME = "nics.json"
VERSION = 1
_log = logging.getLogger(__name__)
Setting = tuple[str, str]  # key of the NIC, name of the setting


@dataclass(frozen=True)
class Pending:
    """A change that is not confirmed; `was_up` is whether the link was, before."""

    key: str
    setting: str
    old: str
    new: str
    was_up: bool


@dataclass(frozen=True)
class Failure:
    """Not tried again before `again_s` seconds since the boot."""

    new: str
    reason: str
    again_s: float


@dataclass(frozen=True)
class Memory:
    originals: Mapping[Setting, str] = field(default_factory=dict)
    """What settings were before the first change."""
    failures: Mapping[Setting, Failure] = field(default_factory=dict)
    pending: Pending | None = None


class Journal:
    def __init__(self, state_dir: Path, boot_id: str) -> None:
        self._path = state_dir / NAME
        self._boot_id = boot_id
        self.broken = ""
        """Why it cannot be read; then nothing is written and nothing may be changed."""
        try:
            self.memory = self._load()
        except OSError as error:
            self.memory, self.broken = Memory(), str(error)

    def begin(self, change: Change, was_up: bool) -> None:
        """Raises OSError: then nothing may be changed. One change at a time (RuntimeError)."""
        if self.memory.pending is not None:
            raise RuntimeError(f"an earlier change is not settled: {self.memory.pending}")
        pending = Pending(change.key, change.setting, change.old, change.new, was_up)
        self._keep(replace(self.memory, pending=pending))

    def confirm(self, restores: bool) -> None:
        pending = self._pending()
        at = (pending.key, pending.setting)
        originals = dict(self.memory.originals)
        if restores:
            originals.pop(at, None)
        else:
            originals.setdefault(at, pending.old)
        failures = {k: v for k, v in self.memory.failures.items() if k != at}
        self._keep(Memory(originals, failures))

    def undone(self, reason: str, again_s: float) -> None:
        """The pending change was rolled back."""
        pending = self._pending()
        failures = dict(self.memory.failures)
        failures[pending.key, pending.setting] = Failure(pending.new, reason, again_s)
        self._keep(replace(self.memory, failures=failures, pending=None))

    def drop(self) -> None:
        """The NIC of the pending change is gone; what it had counts if it comes back."""
        pending = self._pending()
        originals = {(pending.key, pending.setting): pending.old, **self.memory.originals}
        self._keep(replace(self.memory, originals=originals, pending=None))

    def rest(self, at: Setting, failure: Failure) -> None:
        """A setting that is not to be changed for a while."""
        self._keep(replace(self.memory, failures={**self.memory.failures, at: failure}))

    def forget(self, settings: Collection[Setting]) -> None:
        """Those that read as before the first change."""
        originals = {k: v for k, v in self.memory.originals.items() if k not in settings}
        if originals != self.memory.originals:
            self._keep(replace(self.memory, originals=originals))

    def keep_only(self, keys: set[str]) -> None:
        """Forgets links that are gone. A NIC with a PCI address may only be away: with a driver
        that starts anew, or in a pod's network namespace."""
        originals = {k: v for k, v in self.memory.originals.items() if k[0] in keys or is_pci(k[0])}
        failures = {k: v for k, v in self.memory.failures.items() if k[0] in keys}
        if (originals, failures) != (self.memory.originals, self.memory.failures):
            self._keep(replace(self.memory, originals=originals, failures=failures))

    def _pending(self) -> Pending:
        if self.memory.pending is None:
            raise RuntimeError("no change of a NIC is pending")
        return self.memory.pending

    def _keep(self, memory: Memory) -> None:
        if self.broken:
            raise OSError(self.broken)
        durable.write(self._path, json.dumps(self._body(memory), indent=1).encode())
        self.memory = memory

    def _body(self, memory: Memory) -> dict[str, Any]:
        return {
            "version": VERSION,
            "bootId": self._boot_id,
            "originals": [[*at, value] for at, value in memory.originals.items()],
            "failures": [[*at, f.new, f.reason, f.again_s] for at, f in memory.failures.items()],
            "pending": memory.pending and vars(memory.pending),
        }

    def _load(self) -> Memory:
        """Raises OSError for a file that cannot be read: it may hold what must be undone."""
        try:
            body = json.loads(self._path.read_bytes())
            if body["version"] != VERSION:
                raise ValueError(f"version {body['version']} is not {VERSION}")
            if body["bootId"] != self._boot_id:
                return Memory()
            return Memory(
                originals={(key, name): str(v) for key, name, v in body["originals"]},
                failures={
                    (key, name): Failure(new, why, float(again))
                    for key, name, new, why, again in body["failures"]
                },
                pending=Pending(**body["pending"]) if body["pending"] else None,
            )
        except FileNotFoundError:
            return Memory()
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(
                f"{self._path} is not what the agent wrote ({error}): it holds the NICs' values "
                "from before the fabric; mend it, or remove it and check the NICs by hand, and "
                "start the agent anew"
            ) from error
