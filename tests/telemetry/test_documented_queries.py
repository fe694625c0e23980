"""docs/telemetry.md: names what is exported, and its queries work on a real Prometheus."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from epfabric_agent.telemetry import runtime
from epfabric_agent.telemetry.config import configure
from epfabric_agent.telemetry.readings import METRICS
from harness import prometheus
from telemetry.recorded import draw, snapshot

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()


QUESTIONS = PAGE.split("| question | ask |")[1].split("\n\n")[0].splitlines()[2:]


def documented_queries() -> dict[str, str]:
    rows = (re.fullmatch(r"\| (.+?) \| `(.+)` \|", line) for line in QUESTIONS)
    return {row[1]: row[2].replace('="G"', '="g"') for row in rows if row}


def test_every_metric_and_no_other_stands_in_the_table() -> None:
    table = PAGE.split("| metric | ")[1].split("\n\n")[0]
    named = set(re.findall(r"^\| `(epfabric\.[a-z.]+)` \| ", table, re.MULTILINE))
    of_the_agent = {
        "epfabric.sessions",
        "epfabric.transport.info",
        "epfabric.barrier.traces",
        "epfabric.certificate.left",
        "epfabric.nic.used",
        "epfabric.nic.limit",
    }
    assert named == {info.name for info in METRICS} | of_the_agent


def test_every_documented_query_has_an_answer() -> None:
    queries = documented_queries()
    assert len(queries) == len(QUESTIONS)
    drawn = draw(np.random.default_rng(1), {"total": 1e-4, "network": 5e-5}, 50)
    commands = iter((1, 50, 50))
    with prometheus.running() as backend:
        config = configure(backend.otlp, node="n0", fabric="moe", environ={}, interval_s=3600)
        source = lambda: snapshot(drawn, 1, {"n1": 7168}, next(commands))  # noqa: E731
        telemetry = runtime.start(config, source)
        try:
            telemetry.flush()
            telemetry.flush()
            for question, promql in queries.items():
                assert backend.query(promql), f"no answer to: {question}"
        finally:
            telemetry.shutdown()
