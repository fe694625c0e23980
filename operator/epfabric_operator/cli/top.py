"""The command top: fabrics, groups and nodes, again and again; used by main.py."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from epfabric_operator.cli import output
from epfabric_operator.cli.cluster import Cluster
from epfabric_operator.cli.fault import FINE
from epfabric_operator.cli.overview import (
    FABRIC_COLUMNS,
    GROUP_COLUMNS,
    NODE_COLUMNS,
    fabric_row,
    group_row,
    node_row,
)

CLEAR = "\x1b[H\x1b[2J\x1b[3J"
MOST_ROWS = 20
COLUMNS = (*GROUP_COLUMNS[:8], "rate", *GROUP_COLUMNS[8:])
Look = dict[str, list[dict[str, Any]]]
Counts = Mapping[tuple[str, str, int], int]
"""Barriers by namespace, group and epoch."""


def run(cluster: Cluster, options: argparse.Namespace) -> int:
    """Until Ctrl-C, or once. Where it is no terminal, looks follow each other."""
    before: Counts = {}
    last_s = 0.0
    while True:
        found, now_s = look(cluster), time.monotonic()
        rates(found["groups"], before, now_s - last_s)
        before, last_s = counts(found["groups"]), now_s
        if options.output == "json":
            output.show_json(found)
        else:
            sys.stdout.write(
                (CLEAR if sys.stdout.isatty() and not options.once else "") + text(found)
            )
        sys.stdout.flush()
        if options.once:
            return FINE
        time.sleep(options.interval_s)


def look(cluster: Cluster) -> Look:
    now = output.now()
    return {
        "fabrics": [fabric_row(one, now) for one in cluster.fabrics()],
        "groups": [group_row(one) for one in cluster.groups(None)],
        "nodes": [node_row(one) for one in cluster.nodes()],
    }


def counts(groups: list[dict[str, Any]]) -> Counts:
    return {_key(row): row["barriers"] or 0 for row in groups}


def rates(groups: list[dict[str, Any]], before: Counts, passed_s: float) -> None:
    """Adds barriers per second since the last look; agents tell of them every 30 s."""
    for row in groups:
        earlier = before.get(_key(row))
        row["rate"] = None
        if earlier is not None and row["barriers"] is not None and passed_s > 0:
            row["rate"] = round((row["barriers"] - earlier) / passed_s, 1)


def text(found: Look) -> str:
    """What is worth a look comes first: what is not Ready, groups that run, slow ones."""
    fabrics = sorted(found["fabrics"], key=lambda row: (row["ready"] == "True", row["fabric"]))
    groups = sorted(
        found["groups"], key=lambda row: (row["phase"] != "Ready", -(row["p99_seconds"] or 0))
    )
    nodes = sorted(
        found["nodes"], key=lambda row: (row["ready"] == "True", -(row["sessions"] or 0))
    )
    parts = []
    for name, rows, columns in (
        ("FABRICS", fabrics, FABRIC_COLUMNS),
        ("GROUPS", groups, COLUMNS),
        ("NODES", nodes, NODE_COLUMNS),
    ):
        shown = output.table(rows[:MOST_ROWS], columns) if rows else "none\n"
        more = f"… and {len(rows) - MOST_ROWS} more\n" if len(rows) > MOST_ROWS else ""
        parts.append(f"{name} ({len(rows)})\n{shown}{more}")
    return "\n".join(parts)


def _key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return (row["namespace"] or "", row["group"], row["epoch"] or 0)
