"""What the command says of refusals, numbers and half words; and how a benchmark is summed."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from epfabric_operator.cli import bench, output
from epfabric_operator.cli.cluster import fault_of, right_of
from epfabric_operator.cli.completion import complete
from epfabric_operator.cli.fault import FAILED, NO_CLUSTER, NO_RIGHT, NOT_FOUND
from epfabric_operator.cli.main import main, parser
from epfabric_operator.cli.top import counts, rates
from epfabric_operator.kube import ApiError

FORBIDDEN = (
    'epfabrics.epfabric.io is forbidden: User "x" cannot list resource "epfabrics" in API group '
    '"epfabric.io" at the cluster scope'
)


def test_a_refusal_names_the_right_that_is_missing() -> None:
    assert right_of(FORBIDDEN) == (
        "you need the right to list epfabrics.epfabric.io in the whole cluster (a ClusterRole)"
    )
    namespaced = 'User "x" cannot create resource "jobs" in API group "batch" in the namespace "ml"'
    assert right_of(namespaced) == "you need the right to create jobs.batch in namespace ml"
    core = 'User "x" cannot list resource "pods" in API group "" at the cluster scope'
    assert "to list pods in the whole" in right_of(core)
    assert right_of("something else") == "something else"


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, NO_RIGHT), (403, NO_RIGHT), (404, NOT_FOUND), (0, NO_CLUSTER), (500, FAILED)],
)
def test_refusals_have_exit_codes(status: int, code: int) -> None:
    assert fault_of(ApiError(status, "R", "text")).code == code


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["st"], ["status"]),
        ([""], ["bench", "completion", "doctor", "gather", "groups", "nodes", "status", "top"]),
        (["status", "--out"], ["--output"]),
        (["status", "-o", "j"], ["json"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["top", "--o"], ["--once", "--output"]),
        (["nonsense", "x"], []),
    ],
)
def test_words_are_completed(words: list[str], found: list[str]) -> None:
    assert complete(words)[0] == found


def test_files_are_left_to_the_shell() -> None:
    assert complete(["gather", "--file", ""]) == ([], 0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (12e-6, "12 µs"), (3.4e-3, "3.4 ms"), (1.25, "1.25 s"), (1e-3, "1 ms")],
)
def test_seconds_are_shown_in_their_unit(value: float | None, shown: str) -> None:
    assert output.seconds(value) == shown


def test_ages_are_as_kubectl_shows_them() -> None:
    now = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    stamps = ("2026-01-01T23:59:55Z", "2026-01-01T23:10:00Z", "2026-01-01T00:00:00Z", "x", None)
    assert [output.age(one, now) for one in stamps] == ["5s", "50m", "1d", "", ""]


@pytest.mark.parametrize("words", [["top", "--interval-s", "x"], ["status", "-o", "yaml"], []])
def test_a_wrong_command_line_ends_with_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_every_command_has_help_with_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    for command in complete([""])[0]:
        with pytest.raises(SystemExit) as ended:
            parser().parse_args([command, "--help"])
        assert ended.value.code == 0
        said = capsys.readouterr().out
        assert command == "completion" or "not allowed; the message says" in said


def rank(number: int, p50: float, p99: float, verified: bool = True) -> dict[str, Any]:
    one = {"case": "barrier", "metric": "latency", "unit": "us", "value": p50}
    return {"rank": number, "results": [{**one, "p50": p50, "p99": p99, "verified": verified}]}


def test_a_benchmark_is_the_median_of_ranks_and_the_worst_tail() -> None:
    (row,) = bench.summary([rank(0, 10, 20), rank(1, 30, 90), rank(2, 20, 30)])
    assert (row["p50"], row["p99"], row["ranks"], row["verified"]) == (20, 90, 3, True)
    (row,) = bench.summary([rank(0, 10, 20), rank(1, 30, 90, verified=False)])
    assert row["verified"] is False


def test_a_benchmark_is_right_only_if_every_rank_told_of_right_results() -> None:
    fine, wrong = rank(0, 1, 1), rank(1, 1, 1, verified=False)
    failed: dict[str, Any] = {"error": "did not join", "results": []}
    assert bench.right([fine, fine], 2)
    for ranks in ([fine], [fine, wrong], [fine, failed], [failed, failed]):
        assert not bench.right(ranks, 2)


def test_a_benchmark_that_fails_says_why() -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    pod = {"status": {"conditions": [scheduled]}}
    assert "only 0 of 2 ranks told a result: 0/3 nodes" in bench.why([pod], [], 2)
    assert "group-failed" in bench.why([], [{"error": "group-failed", "results": []}], 2)
    assert "wrong bytes" in bench.why([], [rank(0, 1, 1), rank(1, 1, 1)], 2)


def test_top_counts_barriers_per_second_of_one_epoch() -> None:
    def row(epoch: int, barriers: int | None) -> dict[str, Any]:
        return {"namespace": "ns", "group": "g", "epoch": epoch, "barriers": barriers}

    before = counts([row(1, 100)])
    same, other, none = [row(1, 300)], [row(2, 300)], [row(1, None)]
    for rows in (same, other, none):
        rates(rows, before, 10.0)
    assert (same[0]["rate"], other[0]["rate"], none[0]["rate"]) == (20.0, None, None)
