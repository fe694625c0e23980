"""The budget of large groups: the documented table is what the core would really take."""

from __future__ import annotations

from pathlib import Path

import pytest
from epfabric_agent.budget import WORLDS, budget_of, table
from epfabric_agent.main import main
from epfabric_crds import Settings

ROOT = Path(__file__).resolve().parents[3]


def test_the_documented_table_is_what_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["budget"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert [int(row.split("|")[1]) for row in rows[1:]] == list(WORLDS)
    assert printed in (ROOT / "docs/scale.md").read_text()


def test_the_numbers_are_those_of_the_design() -> None:
    at = budget_of(Settings(), world=1024, ranks_per_node=8, regions=2)
    assert at["links"] == 4 * 1016
    assert at["domains"] == 1016 <= at["mailboxes"] <= 4096
    assert at["signal_words"] * 8 == 4 << 20
    assert at["registrations"] == 4 * (2 + 2)
    assert budget_of(Settings(), world=8, ranks_per_node=8, regions=2)["links"] == 0


@pytest.mark.parametrize(
    "wrong", [["--ranks", "5000"], ["--proxies", "17"], ["--ranks-per-node", "0"]]
)
def test_a_group_that_cannot_be_is_an_error(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", *wrong]) == 2
    assert "cannot be" in capsys.readouterr().err


def test_the_table_has_a_row_for_each_size() -> None:
    assert len(table(Settings(), worlds=(16, 24)).splitlines()) == 4
