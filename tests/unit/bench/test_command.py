"""The command's exit status, for results that no machine's speed decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from epfabric_bench.__main__ import main, run
from epfabric_bench.run import Bench, Run
from epfabric_bench.series import MORE, OURS, Limit, Line


def bench(verified: bool = True, bound: float = 1.0) -> Bench:
    lines = [Line("one", "rate", "1/s", MORE, OURS, number, verified, (5.0,)) for number in (0, 1)]
    return Bench("made-up", "for the test", lambda _: lines, (Limit("rate", bound, 100.0),))


def test_wrong_data_and_a_missed_bound_fail_a_missed_goal_does_not(tmp_path: Path) -> None:
    full = Run(small=False)
    assert run(bench(), full, tmp_path) == []
    (wrong,) = run(bench(verified=False), full, tmp_path)
    assert "not as it should be" in wrong
    (missed,) = run(bench(bound=6.0), full, tmp_path)
    assert "one rate: bound missed with 5 1/s" in missed


def test_a_small_run_fails_by_its_data_only(tmp_path: Path) -> None:
    small = Run(small=True)
    assert run(bench(bound=6.0), small, tmp_path) == []
    assert len(run(bench(verified=False), small, tmp_path)) == 1


def test_results_say_what_they_were_measured_on_but_not_where(tmp_path: Path) -> None:
    run(bench(), Run(small=True), tmp_path)
    found = json.loads((tmp_path / "made-up.json").read_text())["machine"]
    for name in ("cpu", "cores", "kernel", "compiler", "epfabric", "libfabric", "date"):
        assert found[name], name
    assert len(found["load_before"]) == len(found["load_after"]) == 3
    assert "/" not in found["kernel"] + found["cpu"]
    raw = json.loads((tmp_path / "made-up.samples.json").read_text())
    assert raw["series"][0]["ours"] == [[5.0], [5.0]]


def test_an_unknown_bench_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nonesuch"])
    assert ended.value.code == 2
    assert "no bench nonesuch; there are fifo" in capsys.readouterr().err
