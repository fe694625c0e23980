"""The budget of large groups: the documented table is what the core would really take."""

from __future__ import annotations

from pathlib import Path

import pytest
from epfabric_agent.budget import WORLDS, budget_of, table, verdicts
from epfabric_agent.main import main
from epfabric_crds import Settings

ROOT = Path(__file__).resolve().parents[3]
FASTLINQ = {"max_qp": 8568, "max_cq": 17136, "max_srq": 0, "max_pd": 65536, "max_mr": 131070,
            "max_ah": 0, "max_qp_wr": 32767, "max_cqe": 8388480, "max_sge": 4}  # fmt: skip
"""As ibv_devinfo -v prints those of such a NIC; 0 where its record does not say."""


@pytest.mark.parametrize("more", [[], ["--nics-per-gpu", "2"]])
def test_the_documented_table_is_what_the_command_prints(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", *more]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert [int(row.split("|")[1]) for row in rows[1:]] == list(WORLDS)
    assert printed in (ROOT / "docs/scale.md").read_text()


def test_the_numbers_are_those_of_the_design() -> None:
    at = budget_of(Settings(), world=1024, ranks_per_node=8, regions=2)
    assert at["links"] == 4 * 1016
    assert at["domains"] == 1016 <= at["mailboxes"] <= 4096
    assert at["signal_words"] * 8 == 4 << 20
    assert at["registrations"] == 4 * (2 + 3)
    assert at["queue_pairs"] == 4 * (1016 + 1)
    assert budget_of(Settings(), world=8, ranks_per_node=8, regions=2)["links"] == 0


@pytest.mark.parametrize(
    "wrong",
    [["--ranks", "5000"], ["--proxies", "17"], ["--ranks-per-node", "0"], ["--nics-per-gpu", "9"]],
)
def test_a_group_that_cannot_be_is_an_error(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", *wrong]) == 2
    assert "cannot be" in capsys.readouterr().err


def test_the_table_has_a_row_for_each_size() -> None:
    assert len(table(Settings(), worlds=(16, 24)).splitlines()) == 4


def test_groups_are_judged_by_what_the_nics_say_of_themselves() -> None:
    text = verdicts(Settings(), {"q0": FASTLINQ}, [256, 512])
    device, fits, too_large = text.splitlines()
    assert device.startswith("q0: max_qp 8568, ")
    assert fits == "256 ranks: they fit"
    assert too_large.startswith(
        "512 ranks: RDMA device q0 has 8568 queue pairs (max_qp), of which this agent uses 0, and "
        "8 rank(s) of a group of 512 need 16160 more: use fewer proxies"
    )
    assert verdicts(Settings(), {"q0": FASTLINQ, "q1": FASTLINQ}, [512]).endswith("they fit")


def test_a_device_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["budget", "--devices", "nosuch0"]) == 2
    assert capsys.readouterr().err
