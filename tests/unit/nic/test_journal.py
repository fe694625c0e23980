"""The journal after crashes: old or new, never half; another boot; what cannot be read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from epfabric_agent.manifest.nics import restore
from epfabric_agent.nic.change import Changer
from epfabric_agent.nic.journal import Journal
from epfabric_agent.nic.plan import Change
from unit.nic.clock import StepClock
from unit.nic.hands import Stubborn

CHANGE = Change("eth0", "0000:3b:00.0", "mtu", "1500", "9000", "spec.nics.mtu", True, False)


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "boot")
    journal.begin(CHANGE, was_up=True)
    again = Journal(tmp_path, "boot")
    assert again.memory == journal.memory
    again.confirm(restores=False)
    assert Journal(tmp_path, "boot").memory.originals == {("0000:3b:00.0", "mtu"): "1500"}
    assert (tmp_path / "nics.json").stat().st_mode & 0o777 == 0o600


def test_a_second_change_does_not_take_the_place_of_one_that_is_pending(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "boot")
    journal.begin(CHANGE, was_up=True)
    with pytest.raises(RuntimeError, match="not settled"):
        journal.begin(replace(CHANGE, key="other"), was_up=True)
    assert Journal(tmp_path, "boot").memory == journal.memory


def test_another_boot_has_nothing_to_undo(tmp_path: Path) -> None:
    Journal(tmp_path, "boot").begin(CHANGE, was_up=True)
    assert Journal(tmp_path, "later").memory.pending is None


def test_the_first_value_stays_through_further_changes(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "boot")
    for old, new in (("1500", "9000"), ("9000", "4200")):
        journal.begin(Change(*["eth0", "k", "mtu", old, new, "", True, False]), was_up=True)  # type: ignore[arg-type]
        journal.confirm(restores=False)
    assert journal.memory.originals == {("k", "mtu"): "1500"}


@pytest.mark.parametrize("text", ["", "{}", '{"version": 9, "bootId": "boot"}', "[1]"])
def test_a_spoilt_journal_is_told_and_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "nics.json").write_text(text)
    journal = Journal(tmp_path, "boot")
    assert "mend it, or remove it" in journal.broken
    with pytest.raises(OSError, match="mend it, or remove it"):
        journal.begin(CHANGE, was_up=True)
    with pytest.raises(OSError, match="mend it, or remove it"):
        asyncio.run(restore(tmp_path))
    assert (tmp_path / "nics.json").read_text() == text


def test_what_cannot_be_rolled_back_stays_pending_until_it_can(tmp_path: Path) -> None:
    hands, journal = Stubborn(), Journal(tmp_path, "boot")
    answers = ["gone"] * 1000
    changer = Changer(hands, journal, lambda: answers.pop(), StepClock())
    node = hands.look(None, None)
    change = Change("eth0", "eth0", "mtu", "1500", "9000", "", True, False)
    assert "could not be rolled back yet: device busy" in changer.make(change, node)
    assert journal.memory.pending is not None
    assert "device busy" in changer.settle()
    hands.stuck = False
    assert "mtu was rolled back to 1500" in changer.settle()
    assert Journal(tmp_path, "boot").memory.pending is None
    assert hands.value == "1500"
    assert changer.settle() == ""


def test_a_change_is_not_made_where_it_cannot_be_written_down(tmp_path: Path) -> None:
    hands, journal = Stubborn(), Journal(tmp_path / "gone", "boot")
    changer = Changer(hands, journal, str, StepClock())
    change = Change("eth0", "eth0", "mtu", "1500", "9000", "", True, False)
    with pytest.raises(FileNotFoundError):
        changer.make(change, hands.look(None, None))
    assert hands.value == "1500"


def test_a_nic_that_is_only_away_is_not_forgotten(tmp_path: Path) -> None:
    """With a driver that starts anew, in a pod's namespace, or gone while a change is pending."""
    journal = Journal(tmp_path, "boot")
    for key in ("0000:3b:00.0", "cali12"):
        journal.begin(replace(CHANGE, key=key), was_up=True)
        journal.confirm(restores=False)
    journal.begin(replace(CHANGE, setting="pfc", old="0"), was_up=True)
    journal.drop()
    journal.keep_only(set())
    kept = {("0000:3b:00.0", "mtu"): "1500", ("0000:3b:00.0", "pfc"): "0"}
    assert Journal(tmp_path, "boot").memory.originals == kept
