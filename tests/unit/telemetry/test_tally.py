"""Epochs are counted once each, refusals always, and groups that are gone are forgotten."""

from __future__ import annotations

from epfabric_agent.groups.state import GroupState, Phase
from epfabric_agent.groups.tally import KEPT_S, Tally
from epfabric_agent.telemetry.readings import EPOCHS, REFUSALS, readings
from epfabric_agent.telemetry.snapshot import GroupSample, Snapshot


def told(tally: Tally, *said: tuple[Phase, int]) -> dict[str, int]:
    for phase, epoch in said:
        tally.epoch("ns/g", GroupState(phase, "", epoch, 4, ()))
    return dict(tally.counts()["ns/g"].epochs)


def test_an_epoch_counts_once_however_often_its_state_is_told() -> None:
    tally = Tally()
    assert told(tally, ("Forming", 1)) == {"opened": 0, "completed": 0, "failed": 0}
    counts = told(tally, ("Ready", 1), ("Ready", 1), ("Completed", 1), ("Forming", 2), ("Ready", 2))
    assert counts == {"opened": 2, "completed": 1, "failed": 0}
    assert told(tally, ("Failed", 2), ("Forming", 3), ("Failed", 3))["failed"] == 2


def test_a_group_is_kept_for_five_minutes_and_comes_back_as_another() -> None:
    now = [0.0]
    tally = Tally(lambda: now[0])
    tally.refused("ns/g", "quota")
    first = tally.counts()["ns/g"].handle
    now[0] = KEPT_S
    tally.refused("ns/other", "quota")
    assert set(tally.counts()) == {"ns/g", "ns/other"}
    now[0] = KEPT_S + 1
    tally.refused("ns/other", "quota")
    assert set(tally.counts()) == {"ns/other"}
    tally.refused("ns/g", "quota")
    assert tally.counts()["ns/g"].handle != first
    assert tally.counts()["ns/g"].refusals == {"quota": 1}


def test_readings_carry_results_and_codes() -> None:
    sample = GroupSample("ns", "g", 3, {"failed": 2}, {"quota": 5})
    found = {
        (one.metric, one.attributes): one.value for one in readings(Snapshot(groups=(sample,)))
    }
    assert found == {
        (EPOCHS, (("epfabric.result", "failed"),)): 2,
        (REFUSALS, (("epfabric.reason", "quota"),)): 5,
    }
